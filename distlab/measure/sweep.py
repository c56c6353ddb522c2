"""`sweep`: functions x sizes x numbers of ranks, timed on a cluster; `Sweep`: what it measured.

Called in the notebook's kernel; `take_turns` runs on every rank. A `Sweep` is a table, and a
picture.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from distlab import machine
from distlab.arguments import mapping, refuse, whole_number
from distlab.errors import RanksFailed, SweepError
from distlab.measure.timing import Timing, bus_factor, measure_each
from distlab.progress_bar import progress_bar
from distlab.tables import (
    ShownAsTable,
    Table,
    count,
    format_bandwidth,
    format_bytes,
    format_seconds,
)
from distlab.wire.namespace import bind_rank_globals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from distlab.notebook.cluster import Cluster
    from distlab.plotting.axes import Curve
    from distlab.plotting.curves import MeasuredCurve

SWEEP_EXAMPLE = 'Call sweep(cluster, {"gloo": dist.all_reduce}, [1 << 10, 1 << 20]).'
ELEMENT = 4  # bytes of a float32
SWEEP_HEADS = ("size", "count", "type", "function", "ranks", "time", "algbw", "busbw", "spread")


@dataclass(frozen=True, repr=False)
class Sweep(ShownAsTable):
    """Times of functions over sizes and numbers of ranks; a notebook shows it as its table.

    Attributes:
        timings: by number of ranks, size in bytes and function, in the order in which they were
            measured.
        collective: the one whose factor turns algbw into busbw.
        cores: of the machine, or machines, that the ranks run on.
        simulated: on which machines, in words, if times are virtual; "" for measured times.
    """

    timings: Mapping[tuple[int, int, str], Timing]
    collective: str
    cores: int
    simulated: str = ""

    @property
    def functions(self) -> list[str]:
        """Names of the functions, in their order."""
        return list(dict.fromkeys(function for _, _, function in self.timings))

    @property
    def ranks(self) -> list[int]:
        """Numbers of ranks, in their order."""
        return list(dict.fromkeys(ranks for ranks, _, _ in self.timings))

    def timing(self, size: int, function: str, ranks: int | None = None) -> Timing:
        """The `Timing` of one function at one size.

        Args:
            size: in bytes.
            function: its name.
            ranks: how many; None for the most.

        Raises:
            ArgumentError: it was not measured.
        """
        if ranks is None:
            ranks = max(self.ranks)
        if (ranks, size, function) not in self.timings:
            asked = (size, function, ranks)
            refuse("size, function, ranks", "one of those measured", asked, "table() shows them.")
        return self.timings[ranks, size, function]

    def table(self) -> Table:
        """The columns of nccl-tests, with the quartiles of the repetitions as the spread.

        A note below says if there were more ranks than cores.
        """
        rows = []
        for (n, size, function), timing in self.timings.items():
            rows.append(self._row(n, size, function, timing))
        title = f"{self.collective}: median time of the slowest rank; the spread is its quartiles"
        if self.simulated:
            title = f"{self.collective}, {self.simulated}: virtual time of the slowest rank"
        notes = []
        most = max(self.ranks, default=0)
        if self._is_crowded(most):
            where = f"{most} ranks on {count(self.cores, 'core')}"
            notes.append(f"{where} take turns: their times include waiting for a core.")
        return Table(title, SWEEP_HEADS, tuple(rows), "rrllrrrrr", tuple(notes))

    def _row(self, n: int, size: int, function: str, timing: Timing) -> tuple[str, ...]:
        """A row of the table, see SWEEP_HEADS."""
        return (
            format_bytes(size),
            str(size // ELEMENT),
            "float32",
            function,
            str(n),
            format_seconds(timing.seconds),
            format_bandwidth(timing.algbw),
            format_bandwidth(timing.busbw(self.collective, n)),
            f"{format_seconds(timing.low)} to {format_seconds(timing.high)}",
        )

    def _is_crowded(self, n: int) -> bool:
        """Whether so many ranks wait for cores, which adds to their times."""
        return n > self.cores and not self.simulated

    def plot(self, theory: Mapping[str, Curve] | None = None, title: str = "") -> Figure:
        """Time against size on logarithmic axes, a panel for each number of ranks.

        Args:
            theory: by name, sizes in bytes and times in seconds of further lines: a model, a limit
                of the machine.
            title: what was measured.

        Returns:
            The figure, with medians and quartiles; a notebook shows it if it is the last value of a
            cell.
        """
        from distlab.plotting.curves import size_panels  # it imports matplotlib

        panels = {}
        for n in self.ranks:
            heading = f"{title or self.collective}, {count(n, 'rank')}"
            if self._is_crowded(n):
                heading += f" on {count(self.cores, 'core')}"
            panels[heading] = self._curves(n)
        return size_panels(panels, theory or {}, self.simulated)

    def _curves(self, n: int) -> dict[str, MeasuredCurve]:
        """Times against size on `n` ranks, by function."""
        timings_of: dict[str, list[Timing]] = {}  # by function, from the smallest size on
        for (ranks, _, function), timing in sorted(self.timings.items(), key=_size_of):
            if ranks == n:
                timings_of.setdefault(function, []).append(timing)
        return {function: _curve(timings) for function, timings in timings_of.items()}


def _size_of(timed: tuple[tuple[int, int, str], Timing]) -> int:
    (_, size, _), _ = timed
    return size


def _curve(timings: Sequence[Timing]) -> MeasuredCurve:
    """Sizes, medians and quartiles, as a figure takes them."""
    return (
        tuple(timing.num_bytes for timing in timings),
        tuple(timing.seconds for timing in timings),
        tuple(timing.low for timing in timings),
        tuple(timing.high for timing in timings),
    )


# --- how it is measured ---


def sweep(
    cluster: Cluster,
    functions: Mapping[str, Callable[..., Any]],
    sizes: Iterable[int],
    *,
    ranks: Sequence[int] | None = None,
    collective: str = "all_reduce",
    repeat: int = 20,
    warmup: int = 3,
) -> Sweep:
    """Time functions on the ranks of a cluster, at every size and on every number of ranks.

    At each size the functions take turns, call by call, so that whatever slows the machine down
    slows all of them alike. Each is called as fn(tensor) on a tensor of zeros, the same one in
    every call. Progress is shown while it runs, and is not saved.

    Runs on: the notebook's kernel; the functions run on the ranks.

    Args:
        functions: by name, functions of a tensor, for example {"gloo": dist.all_reduce}.
        sizes: of the full buffer of float32, in bytes; each a multiple of 4.
        ranks: numbers of ranks, for example [2, 4]; None for all that the cluster has. Fewer are a
            group of the first n, made with dist.new_group, which every rank calls; the others idle,
            and the cluster and its variables stay as they are. A function is then called as
            fn(tensor, group=group), and must take that.
        collective: what the functions do, for the factor of busbw: one of `measure.BUS_FACTORS`.
        repeat: number of timed calls of each function at each size.
        warmup: number of calls before them, after a first one that makes connections.

    Returns:
        The `Sweep`; a notebook shows its table if it is the last value of a cell.

    Raises:
        ArgumentError: an argument breaks its rule; nothing was measured.
        SweepError: a function failed. It says at which size; its `partial` is the `Sweep` so far.
        Interrupted: a person stopped it; its `partial` is the `Sweep` so far.
    """
    bus_factor(collective, cluster.n)  # raises where it is not known
    whole_number("repeat", repeat, 1)
    whole_number("warmup", warmup, 0)
    mapping("functions", functions, "names to functions of a tensor", SWEEP_EXAMPLE)
    counts = [cluster.n] if ranks is None else list(ranks)
    sizes = list(sizes)
    _check_counts_and_sizes(counts, sizes, cluster.n)
    return _measure_all(cluster, functions, sizes, counts, collective, repeat, warmup)


def _measure_all(
    cluster: Cluster,
    functions: Mapping[str, Callable[..., Any]],
    sizes: Sequence[int],
    counts: Sequence[int],
    collective: str,
    repeat: int,
    warmup: int,
) -> Sweep:
    """Measure at each number of ranks and each size, and show how far it has got; see `sweep`."""
    # the result grows while it is measured, so that an error takes along what is there
    timings: dict[tuple[int, int, str], Timing] = {}
    result = Sweep(timings, collective, machine.cores(), cluster.simulated)
    calls = list(functions.values())
    names = " or ".join(functions)
    untimed = warmup + 1  # the first call makes connections
    with progress_bar(len(counts) * len(sizes)) as bar:
        for n, size in itertools.product(counts, sizes):
            where = f"{format_bytes(size)} on {count(n, 'rank')}"
            bar.set_postfix_str(where)
            with _keeping(result, f"{names} failed at {where}."):
                measured, *_ = cluster.call(take_turns, calls, size, n, repeat, untimed)
            for function, timing in zip(functions, measured, strict=True):
                timings[n, size, function] = timing
            bar.update()
    return result


def _check_counts_and_sizes(counts: Sequence[int], sizes: Sequence[int], most: int) -> None:
    """Refuse numbers of ranks above `most`, and sizes that are not those of some float32."""
    for n in counts:
        whole_number("ranks", n, 1, most, "Start a larger cluster for more.")
    for size in sizes:
        if size <= 0 or size % ELEMENT:
            rule = f"bytes above 0, multiples of the {ELEMENT} of an element"
            refuse("sizes", rule, size, SWEEP_EXAMPLE)


@contextlib.contextmanager
def _keeping(result: Sweep, failure: str) -> Iterator[None]:
    """Give errors the result so far, because what took minutes to measure must not be lost.

    Args:
        result: what was measured before.
        failure: the first line of the error for a function that fails.
    """
    kept = (
        f"{count(len(result.timings), 'time')} measured before that: "
        "`import sys; sys.last_value.partial` has them."
    )
    try:
        yield
    except RanksFailed as error:
        message = f"{failure}\n{type(error).__name__}: {error}\n{kept}"
        failed = SweepError(message, error.failures, error.finished)
        failed.partial = result
        raise failed from error
    except KeyboardInterrupt as error:
        error.partial = result  # type: ignore[attr-defined]  # an attribute that only this one has
        error.args = (f"{error}\n{kept}".lstrip(), *error.args[1:])
        raise


# --- on every rank ---


def take_turns(
    rank: int, world_size: int, calls: Sequence[Any], size: int, n: int, repeat: int, warmup: int
) -> list[Timing] | None:
    """Time functions in turns on the first n ranks.

    Runs on: every rank; those from n on make the group with the others and return None.
    """
    for fn in calls:
        bind_rank_globals(fn)
    group = None
    if n < world_size:
        group = dist.new_group(range(n))
        calls = [functools.partial(fn, group=group) for fn in calls]
    if rank >= n:
        return None
    tensor = torch.empty(size // ELEMENT).zero_()  # torch.zeros would leave its pages untouched
    try:
        return measure_each(
            calls, tensor, num_bytes=size, repeat=repeat, warmup=warmup, group=group
        )
    finally:
        if group is not None:
            dist.destroy_process_group(group)
