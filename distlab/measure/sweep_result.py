"""`Sweep`: what distlab.sweep measured, as a table, a picture, a fitted line, a frame.

Made by sweep.py; runs anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distlab.errors import refuse
from distlab.measure.tables import Table
from distlab.measure.timing import Fit, Timing, fit_alpha_beta
from distlab.plotting.units import count, format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Line = tuple[Sequence[float], Sequence[float]]  # sizes in bytes, times in seconds


FIELDS = ("function", "ranks", "size", "count", "type", "time", "algbw", "busbw", "low", "high", "repetitions")
HEADS = ("size", "count", "type", "function", "ranks", "time", "algbw", "busbw", "spread")  # of the table


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
        simulated: on which machines in virtual time, in words; "" for times that were measured.
    """

    points: tuple[Point, ...]
    collective: str
    dtype: str
    itemsize: int
    cores: int
    simulated: str = ""

    @property
    def functions(self) -> list[str]:
        """Names of the functions, in their order."""
        return list(dict.fromkeys(point.function for point in self.points))

    @property
    def ranks(self) -> list[int]:
        """Numbers of ranks, in their order."""
        return list(dict.fromkeys(point.ranks for point in self.points))

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
        rows = []
        for point in self.points:
            t, n = point.timing, point.ranks
            what = (point.function, n, t.num_bytes, t.num_bytes // self.itemsize, self.dtype)
            times = (t.seconds, t.algbw, t.busbw(self.collective, n), t.low, t.high, len(t.repetitions))
            rows.append(dict(zip(FIELDS, what + times, strict=True)))
        return rows

    def table(self) -> Table:
        """The columns of nccl-tests, with the quartiles of the repetitions as the spread.

        A note below says so where there were more ranks than cores.
        """
        lines = []
        for point in self.points:
            t, n = point.timing, point.ranks
            what = (format_bytes(t.num_bytes), str(t.num_bytes // self.itemsize), self.dtype, point.function, str(n))
            rates = (format_bandwidth(t.algbw), format_bandwidth(t.busbw(self.collective, n)))
            spread = f"{format_seconds(t.low)} to {format_seconds(t.high)}"
            lines.append((*what, format_seconds(t.seconds), *rates, spread))
        title = f"{self.collective}: median time of the slowest rank, its quartiles as the spread"
        if self.simulated:
            title = f"{self.collective}, {self.simulated}: virtual time of the slowest rank"
        most = 0 if self.simulated else max(self.ranks, default=0)
        note = f"{most} ranks on {count(self.cores, 'core')} take turns: their times include waiting for a core."
        return Table(title, HEADS, tuple(lines), "rrllrrrrr", (note,) if most > self.cores else ())

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
        from distlab.plotting.curves import sweep_panels  # it imports matplotlib

        if not self.points:
            refuse("points", "one or more to be drawn", self.points, "Sweep at least one size.")
        self._line(self.functions[0], ranks)  # refuses a number that was not swept
        curves: dict[int, Any] = {}
        fits: dict[int, dict[str, Fit]] = {}
        for n in self.ranks if ranks is None else [ranks]:
            lines = {name: line for name in self.functions if (line := self._line(name, n))}
            curves[n] = {name: _curve(line) for name, line in lines.items()}
            fits[n] = {name: self.fit(name, n) for name, line in lines.items() if fit and len(line) > 1}
        cores = None if self.simulated else self.cores
        return sweep_panels(curves, fits, cores, title or self.collective, theory, self.simulated)

    def to_dataframe(self) -> Any:
        """`rows()` as a DataFrame of pandas, which nothing else here needs; its own to_csv writes a file."""
        import pandas

        return pandas.DataFrame(self.rows(), columns=FIELDS)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _curve(line: Sequence[Timing]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Sizes, medians, and quartiles, as the figures take them."""
    return [t.num_bytes for t in line], [t.seconds for t in line], [t.low for t in line], [t.high for t in line]
