"""Mutants of PTX that lack one synchronisation each, where in the source they differ, and a table
of which of them runs have caught.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

# --- mutations ------------------------------------------------------------------------------------


@dataclass
class Statement:
    """A PTX instruction: "@p mbarrier.init.b64 [a], 1;" has the guard "@p "."""

    begin: int
    end: int
    guard: str
    opcode: str
    operands: list[str]

    def with_opcode(self, opcode: str) -> str:
        return f"{self.guard}{opcode} {', '.join(self.operands)};"


_STATEMENT = re.compile(
    r"(?P<guard>@!?[%$\w]+\s+)?(?<![\w.%$:/])"
    r"(?P<opcode>(?:mbarrier|bar|barrier|fence|membar|cp|wgmma|tcgen05|griddepcontrol"
    r"|ld|st|red|atom)\.[\w.:]+)\s*(?P<operands>[^;]*);"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMA = re.compile(r",\s*(?![^\[{]*[\]}])")


def statements(text: str, begin: int, end: int) -> Iterator[Statement]:
    """Those of a range that synchronise, copy, or touch memory."""
    code = _COMMENT.sub(lambda comment: " " * len(comment[0]), text)
    for match in _STATEMENT.finditer(code, begin, end):
        operands = _COMMA.split(match["operands"].strip()) if match["operands"].strip() else []
        yield Statement(*match.span(), match["guard"] or "", match["opcode"], operands)


def dropped(_: Statement) -> str:
    return ""


def always_true(wait: Statement) -> str:
    return f"{wait.guard}setp.eq.u32 {wait.operands[0]}, 0, 0;"


def relaxed(statement: Statement) -> str:
    opcode, found = re.subn(r"\.(acquire|release|acq_rel)\b", ".relaxed", statement.opcode)
    if not found:  # as good as said: .acquire or .release, of .cta
        opcode = re.sub(
            r"^(mbarrier\.(?:\w+_wait(?:\.parity)?|arrive(?:_drop)?(?:\.expect_tx)?))",
            r"\1.relaxed.cta",
            opcode,
        )
        opcode = re.sub(r"^(barrier\.cluster\.arrive)", r"\1.relaxed", opcode)
    return statement.with_opcode(opcode)


def without_bytes(expect: Statement) -> str:
    if not expect.opcode.startswith("mbarrier.arrive"):
        return ""
    opcode = expect.opcode.replace(".expect_tx", "")
    return f"{expect.guard}{opcode} {', '.join(expect.operands[:-1])};"


def other_count(step: str) -> Callable[[Statement], str]:
    def replacement(init: Statement) -> str:
        barrier, count = init.operands
        return (
            f"{{ .reg .b32 other; {step}.u32 other, {count}, 1; "
            f"{init.guard}{init.opcode} {barrier}, other; }}"
        )

    return replacement


@dataclass
class Mutation:
    kind: str
    opcode: str  # pattern of the whole opcode
    replacement: Callable[[Statement], str] = dropped


_NOT_RELAXED = r"(?!.*\.relaxed)"
MUTATIONS = [
    Mutation("mbarrier wait always true", r"mbarrier\.(try|test)_wait\..*", always_true),
    Mutation("mbarrier wait relaxed", _NOT_RELAXED + r"mbarrier\.(try|test)_wait\..*", relaxed),
    Mutation("mbarrier arrive dropped", r"mbarrier\.arrive.*"),
    Mutation("mbarrier arrive relaxed", _NOT_RELAXED + r"mbarrier\.arrive.*", relaxed),
    Mutation("expect_tx dropped", r"mbarrier\.(arrive\.)?expect_tx.*", without_bytes),
    Mutation("mbarrier count + 1", r"mbarrier\.init.*", other_count("add")),
    Mutation("mbarrier count - 1", r"mbarrier\.init.*", other_count("sub")),
    Mutation("bar.sync dropped", r"(bar|barrier)(\.cta)?\.sync.*"),
    Mutation("bar.arrive dropped", r"(bar|barrier)(\.cta)?\.arrive.*"),
    Mutation("bar.warp.sync dropped", r"bar\.warp\.sync"),
    Mutation("barrier.cluster.arrive dropped", r"barrier\.cluster\.arrive.*"),
    Mutation(
        "barrier.cluster.arrive relaxed", _NOT_RELAXED + r"barrier\.cluster\.arrive.*", relaxed
    ),
    Mutation("barrier.cluster.wait dropped", r"barrier\.cluster\.wait.*"),
    Mutation("fence.proxy.async dropped", r"fence\.proxy\.async.*"),
    Mutation("fence.mbarrier_init dropped", r"fence\.mbarrier_init.*"),
    Mutation("other fence dropped", r"membar\..*|fence\.(?!proxy\.async|mbarrier_init).*"),
    Mutation(
        "acquire or release relaxed", r"(ld|st|red|atom)\..*(acquire|release|acq_rel).*", relaxed
    ),
    Mutation("cp.async.mbarrier.arrive dropped", r"cp\.async\.mbarrier\.arrive.*"),
    Mutation("cp.async.commit_group dropped", r"cp\.async\.commit_group"),
    Mutation("cp.async.wait dropped", r"cp\.async\.wait_(group|all)"),
    Mutation("bulk commit_group dropped", r"cp\.async\.bulk\.commit_group"),
    Mutation("bulk wait_group dropped", r"cp\.async\.bulk\.wait_group.*"),
    Mutation("tcgen05.fence dropped", r"tcgen05\.fence.*"),
    Mutation("tcgen05.wait dropped", r"tcgen05\.wait.*"),
    Mutation("tcgen05.commit dropped", r"tcgen05\.commit.*"),
    Mutation("wgmma.fence dropped", r"wgmma\.fence.*"),
    Mutation("wgmma.commit_group dropped", r"wgmma\.commit_group.*"),
    Mutation("wgmma.wait_group dropped", r"wgmma\.wait_group.*"),
    Mutation("griddepcontrol.wait dropped", r"griddepcontrol\.wait"),
]

# Of no kernel in particular: pattern of the kinds that nothing can catch, and why.
NOT_MODELLED = [(r"bar\.warp\.sync dropped", "not modelled: the lanes of a warp are one agent")]


@dataclass
class Mutant:
    kind: str
    where: str
    source: str  # PTX, of which this part is replaced
    begin: int
    end: int
    replacement: str

    @property
    def text(self) -> str:
        return self.source[: self.begin] + self.replacement + self.source[self.end :]

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}"


def mutants(
    text: str, place_of: Callable[[str, int], str], begin: int = 0, end: int | None = None
) -> Iterator[Mutant]:
    """All mutants of a range of the text. place_of tells where in the source a position is."""
    found = list(statements(text, begin, len(text) if end is None else end))
    for mutation in MUTATIONS:
        seen: Counter[str] = Counter()
        for statement in found:
            if not re.fullmatch(mutation.opcode, statement.opcode):
                continue
            where = place_of(text, statement.begin)
            seen[where] += 1
            if seen[where] > 1:
                where += f" #{seen[where]}"
            replacement = mutation.replacement(statement)
            yield Mutant(mutation.kind, where, text, statement.begin, statement.end, replacement)


# --- places in the source -------------------------------------------------------------------------


@dataclass
class Frame:
    file: str
    line: int


def frames(text: str, position: int) -> list[Frame]:
    """Where a position in the PTX of nvcc -lineinfo comes from: the line itself, then the line that
    the function around it is inlined at, and so on."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+) "([^"]*)"', text, re.MULTILINE))
    found = []
    begin = text.rfind(".loc\t", 0, position)
    while begin >= 0:
        loc = text[begin : text.index("\n", begin)]
        file, line = re.match(r"\.loc\t(\d+) (\d+)", loc).groups()
        found.append(Frame(files[file], int(line)))
        caller = re.search(r"inlined_at (\d+ \d+ \d+)", loc)
        begin = text.rfind(f".loc\t{caller[1]}", 0, begin) if caller else -1
    return found


# --- what runs have caught ------------------------------------------------------------------------


@dataclass
class Outcome:
    mutant: Mutant
    plain: str | None  # complaint without the checker
    checked: str | None


def table(
    title: str, outcomes: Iterable[Outcome], reason: Callable[[Mutant], str | None]
) -> Iterator[str]:
    """Markdown: how many of each kind were caught, and those that were not, by reason."""
    every, plain, checked = Counter(), Counter(), Counter()
    left: dict[str, list[Mutant]] = {}
    for outcome in outcomes:
        kind = outcome.mutant.kind
        every[kind] += 1
        plain[kind] += outcome.plain is not None
        checked[kind] += outcome.checked is not None
        if outcome.checked is None:
            left.setdefault(reason(outcome.mutant) or "missed", []).append(outcome.mutant)
    yield f"| {title} | mutants | caught without the checker | with it |"
    yield "| --- | ---: | ---: | ---: |"
    for kind in every:
        yield f"| {kind} | {every[kind]} | {plain[kind]} | {checked[kind]} |"
    yield f"| all | {every.total()} | {plain.total()} | {checked.total()} |"
    yield ""
    if not left:
        return
    yield "Not caught, with the reason:"
    yield ""
    for why, those in left.items():
        yield f"* {why}:"
        for mutant in those:
            yield f"  * {mutant.kind}, `{mutant.where}`"
    yield ""
