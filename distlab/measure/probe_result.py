"""`Probe`: what works on which backend and device, as text and as a picture.

Made by probe.py in the notebook's kernel; runs anywhere. Its names are those of the cases in probe_cases.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from distlab.measure.tables import Table
from distlab.text import grouped, refuse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BACKENDS = ("gloo", "nccl", "mpi", "ucc")
DEVICES = ("cpu", "cuda")
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
# what may come of a case, and how it stands in a cell
KINDS = {
    "works": "yes",
    "refused": "no",
    "wrong result": "WRONG",
    "hangs": "HANGS",
    "ends the process": "DIES",
    "not built": "-",
    "no device": "-",
    "depends": "?",  # in tables of older versions: on how it was built
}
ABSENT = {"not built", "no device"}
# The functions in the tables of backends in older versions' documentation of torch.distributed, and the cases of today
# that stand for them.
THEN = {"send": "send, recv", "recv": "send, recv"}
THEN |= {name: name for name in ("broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter", "barrier")}
# those tables by title: for each backend, on CPU and on GPU, what came of each of these functions
HISTORY = {
    "oldest torch": {
        "tcp": ("yyyyyyyyy", "---------"),
        "gloo": ("--yy----y", "--yy----y"),
        "mpi": ("yyyyyyyyy", "?????????"),
    },
    "torch 1.0 to 1.3": {
        "gloo": ("yyyyyyyyy", "--yy-----"),
        "mpi": ("yyyyyyyyy", "?????????"),
        "nccl": ("---------", "--yyyy--y"),
    },
}
LETTERS = {"y": "works", "-": "refused", "?": "depends"}


class Column(NamedTuple):
    """A backend, and the device of the tensors that it is given: "cpu" or "cuda"."""

    backend: str
    device: str

    @property
    def title(self) -> str:
        return f"{self.backend} {'GPU' if self.device == 'cuda' else self.device.upper()}"


class Outcome(NamedTuple):
    """What came of a case: one of `KINDS`, and torch's message where there was one."""

    kind: str
    message: str = ""


Outcomes = dict[str, dict[str, Outcome]]  # by title of a column, by row

# by name of a case of all_reduce: its op and dtype
REDUCTIONS = {f"{op} {dtype}": (op, dtype) for op in OPS for dtype in DTYPES}


@dataclass(frozen=True, repr=False)
class Probe:
    """The outcome of every function of torch.distributed, and of every reduction, by backend and device.

    Its text includes every error message, numbered.

    Attributes:
        torch: the version that was probed. ranks: how many processes took part.
        outcomes: by column (backend, device), by name of the case, its `Outcome`.
    """

    torch: str
    ranks: int
    outcomes: Mapping[Column, Mapping[str, Outcome]]

    def outcome(self, name: str, backend: str = "gloo", device: str = "cpu") -> Outcome:
        """The outcome of one case: `outcome("all_reduce")`, `outcome("SUM int16", "nccl", "cuda")`.

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
        """The columns that could be tried: their backend is built and their device is there."""
        return [c for c, cases in self.outcomes.items() if {o.kind for o in cases.values()} - ABSENT]

    def plot(self) -> Figure:
        """Draw the tables as heat maps: functions by column, and for each that is there, reductions by dtype."""
        from distlab.plotting.heat import heat_maps  # it imports matplotlib, which a rank need not

        return heat_maps([*self._panels().items()])

    def plot_history(self) -> Figure:
        """Draw the tables of older versions of torch beside the same functions of this probe."""
        from distlab.plotting.heat import heat_maps

        backends = {backend for table in HISTORY.values() for backend in table}
        shown = {column.title: cases for column, cases in self.outcomes.items() if column.backend in backends}
        now = {title: {old: cases[new] for old, new in THEN.items()} for title, cases in shown.items()}
        return heat_maps([*((title, then(title)) for title in HISTORY), (f"torch {self.torch}, probed", now)])

    def tables(self) -> list[Table]:
        """The outcome of each function, and of the reductions of each column that is there; the messages below."""
        said = [o.message for column in self.there for o in self.outcomes[column].values() if o.message]
        numbers = {message: number for number, message in enumerate(dict.fromkeys(said), 1)}
        away = [column for column in self.outcomes if column not in self.there]
        absent = grouped((next(iter(self.outcomes[column].values())).message, column.title) for column in away)
        notes = [f"{number:>2}  {message}" for message, number in numbers.items()]
        notes += [f" -  {', '.join(titles)}: {message}" for message, titles in absent.items()]

        def cell(outcome: Outcome) -> str:
            return f"{KINDS[outcome.kind]} {numbers.get(outcome.message, '')}".rstrip()

        tables = []
        for title, columns in self._panels().items():
            rows = [(row, *(cell(cases[row]) for cases in columns.values())) for row in next(iter(columns.values()))]
            tables.append(Table(title, ("", *columns), tuple(rows), "l" * (1 + len(columns))))
        return [*tables[:-1], replace(tables[-1], notes=("", *notes))]

    def _panels(self) -> dict[str, Outcomes]:
        """By title of a table, by head of its column, by row: what came of it."""
        names = [name for name in next(iter(self.outcomes.values())) if name not in REDUCTIONS]
        functions = {column.title: {name: cases[name] for name in names} for column, cases in self.outcomes.items()}
        panels = {f"torch {self.torch} on {self.ranks} ranks": functions}
        for column in self.there:
            cases = self.outcomes[column]
            by_op = {op: {dtype: cases[f"{op} {dtype}"] for dtype in DTYPES} for op in OPS}
            panels[f"all_reduce on {column.title}"] = by_op
        return panels

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self.tables()))

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())


def then(title: str) -> Outcomes:
    """The table of `HISTORY` with that title."""
    columns: Outcomes = {}
    for backend, tables in HISTORY[title].items():
        for device, letters in zip(DEVICES, tables, strict=True):
            cases = {name: Outcome(LETTERS[letter]) for name, letter in zip(THEN, letters, strict=True)}
            columns[Column(backend, device).title] = cases
    return columns
