"""`Sweep`: what distlab.sweep measured, as a table, a picture, a fitted line, a file.

Made by sweeps.py; runs anywhere.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distlab.errors import refuse
from distlab.tables import Table
from distlab.timing import Fit, Timing, fit_alpha_beta, format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Line = tuple[Sequence[float], Sequence[float]]  # sizes in bytes, times in seconds


FIELDS = ("function", "ranks", "size", "count", "type", "time", "algbw", "busbw", "low", "high", "repetitions")


@dataclass(frozen=True)
class Point:
    """One function at one size on one number of ranks."""

    function: str
    ranks: int
    timing: Timing


@dataclass(frozen=True, repr=False)
class Sweep:
    """Times of functions over sizes and numbers of ranks; in a notebook it is shown as its table.

    Attributes:
        points: in the order in which they were measured: by number of ranks, size, function.
        collective: the one whose factor turns algbw into busbw. dtype: the elements' type, for example "float32".
        itemsize: bytes of an element. cores: of the machine, or machines, that the ranks run on.
    """

    points: tuple[Point, ...]
    collective: str
    dtype: str
    itemsize: int
    cores: int

    @property
    def functions(self) -> list[str]:
        """Names of the functions, in their order."""
        return list(dict.fromkeys(point.function for point in self.points))

    @property
    def ranks(self) -> list[int]:
        """Numbers of ranks, in their order."""
        return list(dict.fromkeys(point.ranks for point in self.points))

    @property
    def sizes(self) -> list[int]:
        """Sizes of the full buffer in bytes, ascending."""
        return sorted({point.timing.num_bytes for point in self.points})

    @property
    def note(self) -> str:
        """What to keep in mind where there were more ranks than cores; "" where there were not."""
        most = max(self.ranks, default=0)
        if most <= self.cores:
            return ""
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{most} ranks on {cores} take turns: their times include waiting for a core."

    def timing(self, size: int, function: str | None = None, ranks: int | None = None) -> Timing:
        """The `Timing` of one function at one size.

        Args:
            size: in bytes. function: its name; None where there is one only. ranks: how many; None for the most.

        Raises:
            ArgumentError: it was not measured.
        """
        timings = {timing.num_bytes: timing for timing in self._line(function, ranks)}
        if size not in timings:
            refuse("size", f"one of the sizes {list(timings)}", size, "Measure it: distlab.sweep(cluster, fn, [size]).")
        return timings[size]

    def fit(
        self, function: str | None = None, ranks: int | None = None, smallest: int = 0, largest: float = float("inf")
    ) -> Fit:
        """The line alpha + beta m through the times of one function; its `error` tells how well it fits.

        Args:
            function: its name; None where there is one only. ranks: how many; None for the most.
            smallest, largest: the sizes in bytes that are fitted, to fit each side of a knee by itself.

        Raises:
            ArgumentError: it was not measured, or at fewer than two sizes.
        """
        line = [timing for timing in self._line(function, ranks) if smallest <= timing.num_bytes <= largest]
        return fit_alpha_beta([timing.num_bytes for timing in line], [timing.seconds for timing in line])

    def _line(self, function: str | None, ranks: int | None) -> list[Timing]:
        """The timings of one function on one number of ranks, by size."""
        known, counts = self.functions, self.ranks
        if function not in known and not (function is None and len(known) == 1):
            refuse("function", f"one of {', '.join(map(repr, known))}", function, "Give the name that it was swept as.")
        if ranks is not None and ranks not in counts:
            refuse("ranks", f"one of {', '.join(map(str, counts))}", ranks, "Leave ranks out to mean the most.")
        name, n = known[0] if function is None else function, max(counts) if ranks is None else ranks
        timings = [point.timing for point in self.points if (point.function, point.ranks) == (name, n)]
        return sorted(timings, key=lambda timing: timing.num_bytes)

    def rows(self) -> list[dict[str, Any]]:
        """One dict a point, sizes in bytes, times in seconds, bandwidths in GB/s; low and high are quartiles."""
        return [dict(zip(FIELDS, self._fields(point), strict=True)) for point in self.points]

    def _fields(self, point: Point) -> tuple[Any, ...]:
        t, n = point.timing, point.ranks
        bandwidths = t.algbw, t.busbw(self.collective, n)
        return (
            *(point.function, n, t.num_bytes, t.num_bytes // self.itemsize, self.dtype),
            *(t.seconds, *bandwidths, t.low, t.high, len(t.repetitions)),
        )

    def table(self, note: bool = True) -> Table:
        """The columns of nccl-tests, with the quartiles of the repetitions as the spread.

        Args:
            note: whether `self.note` stands below it; a notebook whose outputs are compared on other machines, with
                more cores, leaves it out.
        """
        several = len(self.ranks) > 1
        heads = ("size", "count", "type", "function", "ranks", "time", "algbw", "busbw", "spread")
        sides = "rrllrrrrr"
        rows = [_cells(row) for row in self.rows()]
        keep = [i for i, head in enumerate(heads) if several or head != "ranks"]
        where = "" if several or not rows else f" on {_ranks(self.ranks[0])}"
        title = f"{self.collective}{where}: median time of the slowest rank, its quartiles as the spread"
        return Table(
            title,
            tuple(heads[i] for i in keep),
            tuple(tuple(row[i] for i in keep) for row in rows),
            "".join(sides[i] for i in keep),
            (self.note,) if note and self.note else (),
        )

    def plot(
        self, ranks: int | None = None, fit: bool = True, theory: Mapping[str, Line] | None = None, title: str = ""
    ) -> Figure:
        """Time against size on logarithmic axes: medians with their quartiles, and the fitted alpha-beta lines.

        Args:
            ranks: the number of ranks to show; None for a panel for each.
            fit: whether the line of each function that was measured at two sizes or more is drawn through its points.
            theory: by name, sizes in bytes and times in seconds of further lines: a model, a limit of the machine.
            title: what was measured.

        Returns:
            The figure; a notebook shows it where it is the last value of a cell.

        Raises:
            ArgumentError: nothing was measured, or not on that many ranks.
        """
        from distlab.plotting.sweeps import Panel, sweep_panels

        if not self.points:
            refuse("points", "one or more to be drawn", self.points, "Sweep at least one size.")
        self._line(self.functions[0], ranks)  # refuses a number that was not swept
        panels = []
        for n in self.ranks if ranks is None else [ranks]:
            lines = {name: line for name in self.functions if (line := self._line(name, n))}
            curves = {name: _curve(line) for name, line in lines.items()}
            fits = {name: self.fit(name, n) for name, line in lines.items() if fit and len(line) > 1}
            panels.append(Panel(n, self.cores, curves, fits))
        return sweep_panels(panels, title or self.collective, theory)

    def to_csv(self, path: str | Path) -> Path:
        """Write `rows()` as a CSV file: sizes in bytes, times in seconds, bandwidths in GB/s; returns its path."""
        path = Path(path)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(self.rows())
        return path

    def to_dataframe(self) -> Any:
        """`rows()` as a pandas DataFrame.

        Raises:
            ModuleNotFoundError: pandas is not installed; distlab does not need it otherwise.
        """
        try:
            import pandas
        except ImportError as error:
            advice = "Call rows() or to_csv(path) instead, or pip install pandas."
            raise ModuleNotFoundError(f"to_dataframe needs pandas, which is not installed. {advice}") from error
        return pandas.DataFrame(self.rows(), columns=FIELDS)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        format_bytes(row["size"]),
        str(row["count"]),
        row["type"],
        row["function"],
        str(row["ranks"]),
        format_seconds(row["time"]),
        format_bandwidth(row["algbw"]),
        format_bandwidth(row["busbw"]),
        f"{format_seconds(row['low'])} to {format_seconds(row['high'])}",
    )


def _curve(line: Sequence[Timing]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Sizes, medians, and quartiles, as the figures take them."""
    return [t.num_bytes for t in line], [t.seconds for t in line], [t.low for t in line], [t.high for t in line]


def _ranks(n: int) -> str:
    return "1 rank" if n == 1 else f"{n} ranks"
