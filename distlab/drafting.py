"""The parts of a script for torchrun: each cell, call and push with the definitions that it needs of its notebook.

Runs on the notebook's kernel, called by export.py. A call has the notebook's names, as on the ranks, and what cells
have defined is theirs again after it. rewriting.py turns source into a part of a script.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from distlab import rewriting
from distlab.errors import rank_list
from distlab.history import Step, Value

GIVEN = ("rank", "world_size", "torch", "dist")  # what distlab defines on every rank, and the script at its top
# what Python defines in a script too; IPython adds names of its own
BUILTIN = {*vars(builtins)} - {"display", "get_ipython"}
Lines = list[tuple[tuple[int, ...], str]]  # code, each part with the ranks that it is for


@dataclass(frozen=True)
class Made:
    """What defines a name on a rank, as far as the script is written.

    Args:
        text: the code. of_rank: whether a cell or a push has put it there; else a call needed it.
    """

    text: str
    of_rank: bool = False


@dataclass
class Draft:
    """A script while it is written."""

    n: int
    parts: list[str] = field(default_factory=list)
    number: int = 0  # of the cell or call that is written
    futures: set[str] = field(default_factory=set)
    cells: int = 0
    left_out: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    displays: bool = False  # whether something calls display without defining it
    keeps: bool = False  # whether a call uses a name that the notebook and the ranks define differently
    bound: dict[str, set[str]] = field(default_factory=dict)  # by name: the code of all cells and pushes that define it
    made: dict[str, dict[int, Made]] = field(default_factory=dict)  # by name and rank
    kept: dict[str, dict[int, Made]] = field(default_factory=dict)  # those that are to be as before after this call

    def make(self, name: str, ranks: Sequence[int], text: str, of_rank: bool = False) -> None:
        """Remember that `text` defines a name on some ranks."""
        self.made.setdefault(name, {}).update(dict.fromkeys(ranks, Made(text, of_rank)))

    def has(self, name: str, rank: int, text: str) -> bool:
        """Whether a rank has a name as `text` defines it."""
        made = self.made.get(name, {}).get(rank, Made(""))
        return made.text == text or (made.of_rank and rewriting.is_same(name, made.text, text))

    def keep(self, name: str, ranks: Sequence[int]) -> None:
        """Remember, until the call has been written, what cells and pushes made of a name on some ranks."""
        made = {rank: made for rank, made in self.made.get(name, {}).items() if rank in ranks and made.of_rank}
        if made:
            self.keeps = True
            self.kept.setdefault(name, {}).update(made)


def bound(steps: Sequence[Step]) -> dict[str, set[str]]:
    """The names that cells and pushes define on the ranks, with the code that does."""
    found: dict[str, set[str]] = {}
    for step in steps:
        cells = rewriting.cell(step.source).defines if step.kind == "cell" else {}
        pushed = {name: _text(name, value) for name, value in step.names.items()}
        for name, text in {**cells, **pushed}.items():
            found.setdefault(name, set()).add(text)
    return found


def add_cell(draft: Draft, step: Step) -> None:
    """Add a %%px cell; one that failed, or is not Python, as a comment."""
    number, cell = draft.number, rewriting.cell(step.source)
    why = _why_failed(step) or cell.refused
    if why:
        first = next((line for line in step.source.splitlines() if line.strip()), "")
        draft.left_out.append(f"cell {number} ({why}): {first.strip()[:60]}")
        heading = f"# --- cell {number} is left out: {why}; what it defined before is missing below ---"
        draft.parts.append(f"{heading}\n{rewriting.commented(step.source)}")
        return
    draft.cells += 1
    draft.futures |= set(cell.futures)
    for name, statement in cell.defines.items():
        draft.make(name, step.ranks, statement, of_rank=True)
    draft.left_out += [f"a line of cell {number} that only a notebook runs: {line}" for line in cell.own_lines]
    _add(draft, f"cell {number}", step, [(step.ranks, cell.text)])


def add_run(draft: Draft, step: Step) -> None:
    """Add a call by cluster.run: the function's source, what it uses of the notebook, and the call.

    Where the notebook and a cell define a name, the function has the notebook's, and cells have their own afterwards.
    """
    name = (step.fn.text if step.fn else "") or "a function"
    if why := _why_failed(step):
        draft.left_out.append(f"call {draft.number} ({why}): cluster.run({name})")
        draft.parts.append(f"# --- call {draft.number} is left out: cluster.run({name}), {why} ---\n")
        return
    draft.cells += 1
    definitions: Lines = []

    def expression(value: Value | None, what: str) -> str:
        return _expression(draft, value, definitions, what, step.ranks)

    function = expression(step.fn, "the function")
    numbered = [expression(arg, f"argument {i} of {name}") for i, arg in enumerate(step.first + step.args)]
    numbered[len(step.first) : len(step.first)] = ["_RANK", "_WORLD_SIZE"]
    named = [f"{key}={expression(arg, key)}" for key, arg in step.kwargs.items()]
    text = f"_show_value({function}({', '.join(numbered + named)}))\n"
    keep, restore = _keep_and_restore(draft)
    if definitions:
        draft.parts.append(f"# --- what call {draft.number} needs ---\n{_joined(draft, keep + definitions)}")
    _add(draft, f"call {draft.number}: cluster.run({name})", step, [(step.ranks, text), *restore])


def _keep_and_restore(draft: Draft) -> tuple[Lines, Lines]:
    """Lines that keep what the ranks have of names that a call needs otherwise, and lines that bring it back."""
    names: dict[int, tuple[str, ...]] = {}
    for name, made in draft.kept.items():
        draft.made[name] |= made
        names |= {rank: (*names.get(rank, ()), name) for rank in made}
    draft.kept.clear()
    keep: Lines = []
    for some in dict.fromkeys(names.values()):
        ranks = tuple(rank for rank in names if names[rank] == some)
        keep.append((ranks, f"_KEPT = {{name: _NAMES[name] for name in {some} if name in _NAMES}}  # the ranks' own\n"))
    return keep, [(tuple(names), "_NAMES.update(_KEPT)\n")] if names else []


def add_push(draft: Draft, step: Step, used: set[str]) -> None:
    """Add what was pushed, where it is short enough to be written; else a line that asks for it."""
    lines: Lines = []
    for name, value in step.names.items() if not step.failed else ():
        if _text(name, value):
            lines += _pushed(draft, name, value, step.ranks)
        elif name in used:
            lines.append((step.ranks, _missing(draft, name, value, "the notebook pushed it")))
        else:
            lines.append((step.ranks, f"# {name} ({value.kind}) is not here: no cell uses it\n"))
    if lines:
        _add(draft, "pushed from the notebook", replace(step, waited=False), lines)


def _pushed(draft: Draft, name: str, value: Value, ranks: Sequence[int]) -> Lines:
    """Lines that define what was pushed. A function has the notebook's names for good, whatever cells define."""
    needs = dict(_needs(value))
    if any(_clashes(draft, needed, inner) for needed, inner in needs.items()):
        apart = Draft(draft.n, missing=draft.missing)
        inside = "".join(code for _, code in _definition(apart, name, value, ranks)).lstrip("\n")
        draft.displays |= apart.displays
        text = f"def _pushed():\n{rewriting.indented(inside)}    return {name}\n\n\n{name} = _pushed()"
        draft.make(name, ranks, text, of_rank=True)
        return [(ranks, f"\n\n{text}\n")]
    draft.make(name, ranks, "")  # so that it is written, also where it was before
    lines = _definition(draft, name, value, ranks)
    for own, inner in {**needs, name: value}.items():
        if text := _text(own, inner):
            draft.make(own, ranks, text, of_rank=True)
    return lines


def _needs(value: Value) -> Iterator[tuple[str, Value]]:
    """What a function or class uses of its notebook, and what that uses."""
    for name, inner in (value.names or {}).items():
        if name not in GIVEN:
            yield name, inner
            yield from _needs(inner)


def _clashes(draft: Draft, name: str, value: Value) -> bool:
    """Whether the ranks have, or will have, something else under the name of a value."""
    text = _text(name, value)
    theirs = {made.text for made in draft.made.get(name, {}).values() if made.of_rank} | draft.bound.get(name, set())
    return bool(theirs) and (
        not text or _is_anew(name, text) or not all(rewriting.is_same(name, their, text) for their in theirs)
    )


def _add(draft: Draft, title: str, step: Step, lines: Lines) -> None:
    """Add code under its title; then all ranks print in turn."""
    # all ranks meet at a cell's end, which one that was not waited for must not ask of those that run the next cell
    end = "_end_of_cell()\n" if step.waited else ""
    where = f", on {rank_list(sorted(step.ranks))} only" if len(step.ranks) < draft.n else ""
    draft.parts.append(f"# --- {title}{where} ---\n{_joined(draft, lines)}{end}")


def _joined(draft: Draft, lines: Lines) -> str:
    """The code as one text, each part under a condition where it is not for all ranks."""
    text = ""
    for ranks, group in itertools.groupby(lines, key=lambda line: tuple(sorted(line[0]))):
        part = "".join(code for _, code in group)
        if len(ranks) < draft.n:
            condition = f"_RANK == {ranks[0]}" if len(ranks) == 1 else f"_RANK in {ranks}"
            part = part.strip("\n") + "\n"
            # a block of comments only is no block
            part = f"if {condition}:\n{rewriting.indented(part if _has_code(part) else part + 'pass' + chr(10))}"
        text += part
    return text.lstrip("\n")


def _has_code(text: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())


def _why_failed(step: Step) -> str:
    if step.failed:
        return f"it failed with {step.failed}"
    if step.pending is None:
        return ""
    if not step.pending.done():
        return "it has not ended yet"
    return "" if step.pending.successful() else "it failed"


def _expression(draft: Draft, value: Value | None, definitions: Lines, what: str, ranks: Sequence[int]) -> str:
    """How a call names a value; its import or source is added to `definitions`."""
    if value is None or not (value.text or value.code):
        kind = value.kind if value else "object"
        definitions.append((ranks, _missing(draft, what, value or Value(kind), "the notebook sent it")))
        return "..."
    if value.line or value.code:
        if value.text == "<lambda>":
            definitions += _names_of(draft, value, ranks)
            return f"({rewriting.source_of(value)})"
        definitions += _definition(draft, value.text, value, ranks)
    return value.text


def _names_of(draft: Draft, value: Value, ranks: Sequence[int]) -> Lines:
    """What the source of a function or class needs of its notebook."""
    if value.names is None:
        return []
    lines: Lines = []
    for name in sorted(rewriting.global_names(rewriting.source_of(value)) - {*GIVEN}):
        if name in value.names:
            lines += _definition(draft, name, value.names[name], ranks)
        elif name == "display":
            draft.displays |= not {*ranks} <= {*draft.made.get(name, ())}
        elif name not in BUILTIN and name not in draft.made and not name.startswith("__"):
            line = f"# define {name} here, which {value.text} uses: the notebook does not have it\n"
            draft.missing.append(f"{name}, which {value.text} uses")
            draft.make(name, ranks, line)
            lines.append((ranks, line))
    return lines


def _definition(draft: Draft, name: str, value: Value, ranks: Sequence[int]) -> Lines:
    """Lines that define a name as the notebook does, with what they need before; none where it is so already."""
    text = _text(name, value)
    if not text:
        draft.keep(name, ranks)
        draft.make(name, ranks, "")
        return [(ranks, _missing(draft, name, value, "the notebook had it"))]
    others = tuple(rank for rank in ranks if _is_anew(name, text) or not draft.has(name, rank, text))
    draft.keep(name, others)
    draft.make(name, others, text)
    spaced = f"\n\n{text}\n\n\n" if "\n" in text else f"{text}\n"
    needs = _names_of(draft, value, ranks) if value.code else []
    return [*needs, *([(others, spaced)] if others else [])]


def _is_anew(name: str, text: str) -> bool:
    """Whether each call gets its own: a list or dict of the notebook, which the call or the notebook may change."""
    return text.startswith((f"{name} = [", f"{name} = {{"))


def _text(name: str, value: Value) -> str:
    """The code that defines a name; "" where a script cannot hold the value."""
    if value.line:
        return value.line if name == value.text else f"{value.line} as {name}"
    if not value.code:
        return f"{name} = {value.text}" if value.text else ""
    source = rewriting.source_of(value)
    if value.text == "<lambda>":
        return f"{name} = {source}" if source else ""
    return f"{source}\n{name} = {value.text}" if source and name != value.text else source


def _missing(draft: Draft, name: str, value: Value, whose: str) -> str:
    draft.missing.append(f"{name} ({value.kind})")
    return f'raise NotImplementedError("define {name} here ({value.kind}): {whose}, and a script cannot hold it")\n'
