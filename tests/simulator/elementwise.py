"""Runs one instruction on arrays of operands, each lane an element."""

from __future__ import annotations

import numpy as np
import torch

import simulator

_BLOCK = 64
_SLOT_BYTES = 8
_SENTINEL = 0x5A


def _register(dtype: np.dtype) -> str:
    return "pred" if dtype == np.bool_ else f"b{8 * dtype.itemsize}"


def _load(register: str, name: str, address: str) -> str:
    if register == "pred":
        return f"ld.global.b32 %word, [{address}]; setp.ne.u32 {name}, %word, 0;"
    return f"ld.global.{register} {name}, [{address}];"


def _store(register: str, name: str, address: str) -> str:
    if register == "pred":
        return f"selp.b32 %word, 1, 0, {name}; st.global.b32 [{address}], %word;"
    return f"st.global.{register} [{address}], {name};"


def kernel_text(
    statement: str, result: str, registers: list[str], target: str, guard: str = ""
) -> str:
    """A kernel k(n, out, operand...) that executes a statement on %a, %b, %c, %e into %d."""
    names = [f"%{'abce'[k]}" for k in range(len(registers))]
    parameters = ["out", *(f"operand{k}" for k in range(len(registers)))]
    body = [
        "mov.u32 %i, %ctaid.x; mov.u32 %word, %tid.x;",
        f"mad.lo.u32 %i, %i, {_BLOCK}, %word;",
        "ld.param.u32 %word, [n]; setp.ge.u32 %outside, %i, %word; @%outside exit;",
        "and.b32 %word, %i, 3; setp.eq.u32 %active, %word, 1;",
    ]
    for name, register, parameter in zip(
        ["%d", *names], [result, *registers], parameters, strict=True
    ):
        body += [
            f"ld.param.u64 %address, [{parameter}];",
            f"mad.wide.u32 %address, %i, {_SLOT_BYTES}, %address;",
            _load(register, name, "%address"),
        ]
    body += [
        f"{guard} {statement}",
        f"ld.param.u64 %address, [out]; mad.wide.u32 %address, %i, {_SLOT_BYTES}, %address;",
        _store(result, "%d", "%address"),
    ]
    declared = "\n".join(
        f".reg .{register} {name};"
        for name, register in zip(["%d", *names], [result, *registers], strict=True)
    )
    arguments = ", ".join(f".param .u64 {parameter}" for parameter in parameters)
    lines = "\n".join(body)
    return f""".version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .u32 n, {arguments})
{{
.reg .pred %outside, %active;
.reg .b32 %i, %word;
.reg .b64 %address;
{declared}
{lines}
ret;
}}
"""


def _slots(values: np.ndarray) -> torch.Tensor:
    slots = np.zeros((values.size, _SLOT_BYTES), np.uint8)
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(values.size, -1)
    slots[:, : raw.shape[1]] = raw
    return torch.from_numpy(slots)


def evaluate(
    opcode: str,
    result: type,
    *operands: np.ndarray | str,
    destination: str = "%d",
    statement: str = "",
    target: str = "sm_90",
) -> np.ndarray:
    """The results of an instruction, as an array of the numpy type `result`.

    Operands are arrays of one length, or text that stands in the statement as it is. The types of
    the arrays say how wide the registers are; bool is a predicate. A statement of your own may name
    the registers: %d is the result, %a, %b, %c, %e are the arrays. The instruction runs twice, the
    second time for one lane in four, and must leave the others' registers alone.
    """
    arrays = [operand for operand in operands if not isinstance(operand, str)]
    count = arrays[0].size
    names = iter(f"%{letter}" for letter in "abce")
    texts = [o if isinstance(o, str) else next(names) for o in operands]
    statement = statement or f"{opcode} {', '.join([destination, *texts])};"
    dtype = np.dtype(result)
    registers = [_register(a.dtype) for a in arrays]
    inputs = [_slots(a) for a in arrays]
    outputs = []
    for guard in ("", "@%active"):
        module = simulator.Module(
            kernel_text(statement, _register(dtype), registers, target, guard)
        )
        out = torch.full((count, _SLOT_BYTES), _SENTINEL, dtype=torch.uint8)
        module.launch(
            "k",
            grid=-(-count // _BLOCK),
            block=_BLOCK,
            arguments=[count, out, *inputs],
            options=simulator.options(check=False),
        )
        outputs.append(out.numpy()[:, : dtype.itemsize].copy().view(dtype)[:, 0])
    every, guarded = outputs
    active = np.arange(count) % 4 == 1
    untouched = np.full(dtype.itemsize, _SENTINEL, np.uint8).view(dtype)[0]
    if dtype == np.bool_:
        untouched = np.True_
    np.testing.assert_array_equal(_bits(guarded[active]), _bits(every[active]), opcode)
    np.testing.assert_array_equal(
        _bits(guarded[~active]), np.full_like(_bits(guarded[~active]), _bits(untouched)), opcode
    )
    return every


def _bits(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    return values.view(f"u{values.dtype.itemsize}")


def refuses(opcode: str, operands: str, target: str = "sm_90") -> bool:
    """Whether a statement is refused as a form that is not simulated. Registers %h, %r, %d are of
    16, 32 and 64 bits, %p is a predicate."""
    text = f""".version 8.8
.target {target}
.address_size 64
.visible .entry k()
{{
.reg .pred %p; .reg .b16 %h; .reg .b32 %r; .reg .b64 %d; .reg .b128 %q;
{opcode} {operands};
ret;
}}
"""
    try:
        simulator.Module(text).decode("k")
    except simulator.SimulatorError as error:
        return opcode in str(error)
    return False


def pairs(*values: np.ndarray) -> list[np.ndarray]:
    """All combinations of the values, one array for each operand."""
    return [grid.ravel() for grid in np.meshgrid(*values, indexing="ij")]
