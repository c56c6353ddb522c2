"""`Probe`: what works on which backend and device, as text, as a coloured table, as a picture, as data.

Made by the probe in the notebook's kernel; runs anywhere.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distlab.errors import refuse
from distlab.probing.history import HISTORY, THEN
from distlab.probing.names import DTYPES, FUNCTIONS, KINDS, OPS, Column, Outcome, reduction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OLD_BACKENDS = {column.backend for table in HISTORY.values() for column in table}
SHADES = {
    "works": "rgba(0,158,115,.35)",
    "refused": "rgba(230,159,0,.40)",
    "wrong result": "rgba(213,94,0,.75)",
    "hangs": "rgba(213,94,0,.75)",
    "ends the process": "rgba(213,94,0,.75)",
}


@dataclass(frozen=True, repr=False)
class Probe:
    """What came of every function of torch.distributed, and of every reduction, by backend and device.

    In a notebook it is shown as coloured tables; its text has every message, numbered.

    Attributes:
        torch: the version that was probed. ranks: how many processes took part.
        outcomes: by column (backend, device), by name of the case, its `Outcome`.
    """

    torch: str
    ranks: int
    outcomes: Mapping[Column, Mapping[str, Outcome]]

    def outcome(self, name: str, backend: str = "gloo", device: str = "cpu") -> Outcome:
        """What came of one case: `outcome("all_reduce")`, `outcome("SUM int16", "nccl", "cuda")`.

        Raises:
            ArgumentError: it was not tried.
        """
        column = self.outcomes.get(Column(backend, device))
        if column is None:
            refuse("backend, device", f"one of {', '.join(map(str, map(tuple, self.outcomes)))}", (backend, device))
        if name not in column:
            refuse("name", "a case that was tried", name, f"The cases are {', '.join(map(repr, column))}.")
        return column[name]

    @property
    def there(self) -> list[Column]:
        """The columns that could be tried: their backend is built, their device is there, and processes started."""
        absent = {"not built", "no device", "not tried"}
        return [c for c, cases in self.outcomes.items() if {o.kind for o in cases.values()} - absent]

    def plot(self) -> Figure:
        """Draw the tables as heat maps: functions by column, and for each that is there, reductions by dtype."""
        from distlab.plotting.heat import heat_maps

        panels = [(f"torch {self.torch}", self._functions())]
        panels += [(f"all_reduce on {column.title}: op by dtype", self._reductions(column)) for column in self.there]
        return heat_maps(panels)

    def plot_history(self) -> Figure:
        """Draw the tables of older versions of torch beside the same functions of this probe."""
        from distlab.plotting.heat import heat_maps

        panels = [
            (title, {column.title: {n: cells[n].kind for n in THEN} for column, cells in table.items()})
            for title, table in HISTORY.items()
        ]
        shown = [column for column in self.outcomes if column.backend in OLD_BACKENDS]
        now = {c.title: {old: self.outcomes[c][new].kind for old, new in THEN.items()} for c in shown}
        return heat_maps([*panels, (f"torch {self.torch}, probed", now)])

    def _functions(self) -> dict[str, dict[str, str]]:
        """By title of the column, by function: what came of it."""
        names = [name for name in FUNCTIONS if any(name in cases for cases in self.outcomes.values())]
        return {column.title: {n: cases[n].kind for n in names} for column, cases in self.outcomes.items()}

    def _reductions(self, column: Column) -> dict[str, dict[str, str]]:
        """By op, by dtype: what came of all_reduce."""
        cases = self.outcomes[column]
        return {op: {dtype: cases[reduction(op, dtype)].kind for dtype in DTYPES} for op in OPS}

    def _numbers(self) -> dict[str, int]:
        """The different messages of what was tried, numbered in the order in which they are met."""
        messages = [o.message for column in self.there for o in self.outcomes[column].values() if o.message]
        return {message: number for number, message in enumerate(dict.fromkeys(messages), 1)}

    def _cell(self, outcome: Outcome) -> str:
        number = self._numbers().get(outcome.message)
        return f"{KINDS[outcome.kind]} {number}" if number and outcome.kind != "works" else KINDS[outcome.kind]

    def _grids(self) -> list[tuple[str, list[str], list[tuple[str, list[Outcome]]]]]:
        """Title, heads, and rows of each table, which are the same as text and as HTML."""
        columns = self.outcomes
        names = list(next(iter(self._functions().values()), {}))
        rows = [(name, [cases[name] for cases in columns.values()]) for name in names]
        grids = [(f"torch {self.torch} on {self.ranks} ranks", [column.title for column in columns], rows)]
        for column in self.there:
            cases = columns[column]
            rows = [(dtype, [cases[reduction(op, dtype)] for op in OPS]) for dtype in DTYPES]
            grids.append((f"all_reduce on {column.title}", list(OPS), rows))
        return grids

    def _notes(self) -> list[str]:
        absent = {o.message: c for c, cases in self.outcomes.items() if c not in self.there for o in cases.values()}
        notes = [f"{number:>2}  {message}" for message, number in self._numbers().items()]
        for message in absent:
            where = [c.title for c, cases in self.outcomes.items() if message in {o.message for o in cases.values()}]
            notes.append(f" -  {', '.join(where)}: {message}")
        return notes

    def __repr__(self) -> str:
        blocks = []
        for title, heads, rows in self._grids():
            lines = [["", *heads], *([name, *map(self._cell, outcomes)] for name, outcomes in rows)]
            widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
            padded = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
            blocks.append("\n".join([title, *(line.rstrip() for line in padded)]))
        return "\n\n".join([*blocks, "\n".join(self._notes())])

    def _repr_html_(self) -> str:
        tables = "".join(f'<div style="margin-right:24px">{self._html(*grid)}</div>' for grid in self._grids())
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self._notes())
        return f'<div style="display:flex;flex-wrap:wrap">{tables}</div>{notes}'

    def _html(self, title: str, heads: Sequence[str], rows: Sequence[tuple[str, list[Outcome]]]) -> str:
        left = "text-align:left;white-space:nowrap;padding:1px 8px"
        head = "".join(f'<th style="{left}">{html.escape(text)}</th>' for text in ("", *heads))
        body = ""
        for name, outcomes in rows:
            cells = "".join(
                f'<td style="{left};background:{SHADES.get(o.kind, "transparent")}" '
                f'title="{html.escape(o.message, quote=True)}">{self._cell(o)}</td>'
                for o in outcomes
            )
            body += f'<tr><th style="{left};font-weight:normal">{html.escape(name)}</th>{cells}</tr>'
        caption = f'<caption style="caption-side:top;text-align:left"><b>{html.escape(title)}</b></caption>'
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    # --- as data ---

    def to_json(self) -> str:
        """All of it as JSON, for `from_json`: a table of another machine can be kept and shown beside this one's."""
        columns = [[*column, {name: [*o] for name, o in cases.items()}] for column, cases in self.outcomes.items()]
        return json.dumps({"torch": self.torch, "ranks": self.ranks, "columns": columns}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Probe:
        """A probe that `to_json` has written."""
        data = json.loads(text)
        outcomes = {
            Column(backend, device): {name: Outcome(*o) for name, o in cases.items()}
            for backend, device, cases in data["columns"]
        }
        return cls(data["torch"], data["ranks"], outcomes)
