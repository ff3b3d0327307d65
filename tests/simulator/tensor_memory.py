"""CUDA text for tests of tcgen05: kernels that fill tensor memory, run one of several instructions,
chosen by number, and return what tensor memory and registers hold then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

LANES = 128
IMAGE_BYTES = 48 * 1024  # of shared memory that operands may fill
SHARED_BYTES = IMAGE_BYTES + 16  # dynamic shared memory of the kernels
SHARED_BEGIN = 1024  # its address

HEAD = (Path(__file__).parent / "kernels" / "tensor_memory.cuh").read_text()

_MEMORY = "const uint4* image, const uint32_t* in, uint32_t* out, int image_bytes, int columns"


def _list(pattern: str, count: int, first: int = 0) -> str:
    return ", ".join(pattern.format(first + i) for i in range(count))


def _switch(cases: Sequence[str]) -> str:
    numbered = (f"case {i}: {{\n{case}\nbreak;\n}}" for i, case in enumerate(cases))
    return "switch (form) {\n" + "\n".join(numbered) + "\n}"


def _issuing_kernel(name: str, group: int, parameters: str, cases: Sequence[str]) -> str:
    """One thread issues, all wait."""
    return f"""
KERNEL {name}({_MEMORY}, {parameters}) {{
  const Memory memory{{image, in, out, image_bytes, columns}};
  const uint32_t base = begin<{group}>(memory);
  if (threadIdx.x == 0 && block_rank() == 0) {{
    {_switch(cases)}
    commit<{group}>();
  }}
  wait_for_commit();
  end<{group}>(base, memory);
}}
"""


def mma_kernel(name: str, group: int, cases: Sequence[str]) -> str:
    parameters = (
        "const uint32_t* mask, int form, uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, "
        "int enable, uint32_t scale_a, uint32_t scale_b"
    )
    return _issuing_kernel(name, group, parameters, cases)


def mma_case(opcode: str, tensor_a: bool, scaled: bool, masks: int, tail: str = "") -> str:
    """A tcgen05.mma with `masks` registers of disable-output-lane."""
    a, a_input = ("[%1]", '"r"(uint32_t(a))') if tensor_a else ("%1", '"l"(a)')
    mask = f"{{{_list('%{}', masks, 7)}}}, " if masks else ""
    scales = "[%5], [%6], " if scaled else ""
    mask_inputs = "".join(f', "r"(mask[{i}])' for i in range(masks))
    return f"""
asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %4, 0;\\n"
             "{opcode} [%0], {a}, %2, %3, {mask}{scales}p{tail};\\n}}"
             :: "r"(base + d), {a_input}, "l"(b), "r"(idesc), "r"(enable),
                "r"(base + scale_a), "r"(base + scale_b){mask_inputs} : "memory");"""


def copy_kernel(name: str, group: int, opcodes: Sequence[str]) -> str:
    cases = [
        f'asm volatile("{opcode} [%0], %1;" :: "r"(base + to), "l"(from) : "memory");'
        for opcode in opcodes
    ]
    return _issuing_kernel(name, group, "int form, uint32_t to, uint64_t from", cases)


def access_kernel(name: str, cases: Sequence[str]) -> str:
    """tcgen05.ld or .st of four warps."""
    return f"""
KERNEL {name}({_MEMORY}, uint32_t* registers, int form, uint32_t at) {{
  const Memory memory{{image, in, out, image_bytes, columns}};
  const uint32_t base = begin<1>(memory);
  uint32_t r[128];
  {_switch(cases)}
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  end<1>(base, memory);
}}
"""


def load_case(opcode: str, count: int, offset: int | None) -> str:
    """Loads registers, and stores them to memory [thread][register]."""
    half = f", {offset}" if offset is not None else ""
    return f"""
asm volatile("{opcode} {{{_list("%{}", count)}}}, [%{count}]{half};\\n"
             "tcgen05.wait::ld.sync.aligned;"
             : {_list('"=r"(r[{}])', count)} : "r"(base + at));
for (int i = 0; i < {count}; ++i) registers[threadIdx.x * {count} + i] = r[i];"""


def store_case(opcode: str, count: int, offset: int | None) -> str:
    half = f"{offset}, " if offset is not None else ""
    return f"""
for (int i = 0; i < {count}; ++i) r[i] = registers[threadIdx.x * {count} + i];
asm volatile("{opcode} [%0], {half}{{{_list("%{}", count, 1)}}};\\n"
             "tcgen05.wait::st.sync.aligned;"
             :: "r"(base + at), {_list('"r"(r[{}])', count)} : "memory");"""
