"""The collectives of a predicted step, as a table: how each runs, and what it takes.

Called by prediction.py, on the notebook's kernel.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from distlab.tables import ShownAsTable, Table, format_bandwidth, format_bytes, format_seconds
from distlab_predict.nodes import Call, Kernel
from distlab_predict.uncertainty import costs_of

if TYPE_CHECKING:
    from distlab_predict.prediction import Prediction

Spans = list[tuple[float, float]]  # (begin, end), one after another


class Collective(NamedTuple):
    """Calls of a step that are alike.

    Attributes:
        name: "all_gather", "send", ...
        ranks: of the group.
        num_bytes: of the whole buffer, as nccl-tests count it; of an all-to-all, what a rank sends.
        how: the algorithm and the protocol: "ring, Simple".
        calls: how many.
        seconds: of one of them, on average, as it goes beside others.
        busbw: in GB/s: what the narrowest link would carry of it if it were the only one.
        exposed: seconds of the step in which they go on and the device does not compute.
    """

    name: str
    ranks: int
    num_bytes: int
    how: str
    calls: int
    seconds: float
    busbw: float
    exposed: float


@dataclass(frozen=True, repr=False)
class Collectives(ShownAsTable):
    """The collectives and messages of the rank that computes longest, in its last step.

    A notebook shows its table.

    Attributes:
        rows: those that take most of the step first.
        title: of the table.
    """

    rows: tuple[Collective, ...]
    title: str

    def __iter__(self) -> Iterator[Collective]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def table(self) -> Table:
        """A row for each collective by name, ranks and bytes."""
        rows = []
        for row in self.rows:
            cells = (
                row.name,
                str(row.ranks),
                format_bytes(row.num_bytes),
                row.how,
                f"{row.calls:,}",
                format_seconds(row.seconds),
                format_bandwidth(row.busbw),
                format_seconds(row.exposed),
            )
            rows.append(cells)
        heads = ("", "ranks", "bytes", "how", "calls", "each", "bus bandwidth", "exposed")
        return Table(self.title, heads, tuple(rows), "lrrlrrrr")


def collectives_of(prediction: Prediction) -> Collectives:
    """The collectives and messages of a predicted step."""
    number = prediction.busiest
    recording = prediction.recordings[number]
    first, after_last = recording.steps[-1]
    times = prediction.times[number][first:after_last]
    nodes = recording.nodes[first:after_last]
    kernels = [span for node, span in zip(nodes, times, strict=True) if isinstance(node, Kernel)]
    computing = _Computing(kernels)
    calls: dict[tuple[str, int, int, str], list[tuple[float, float]]] = {}
    for (node, cost, took), (begin, end) in zip(costs_of(prediction, number), times, strict=True):
        if isinstance(node, Call):
            ranks = 2 if node.peer is not None else len(node.members)
            key = (node.name, ranks, whole_buffer(node), cost.how)
            exposed = took - computing.between(begin, end)
            calls.setdefault(key, []).append((took, exposed))
    rows = []
    for (name, ranks, num_bytes, how), alike in calls.items():
        seconds = sum(took for took, _ in alike) / len(alike)
        exposed = sum(one for _, one in alike)
        on_the_bus = bus_bytes(name, ranks, num_bytes)
        busbw = on_the_bus / seconds / 1e9 if seconds else 0.0
        row = Collective(name, ranks, num_bytes, how, len(alike), seconds, busbw, exposed)
        rows.append(row)
    rows.sort(key=lambda row: row.calls * row.seconds, reverse=True)
    title = f"Predicted, not measured: collectives of rank {recording.rank} in a step"
    return Collectives(tuple(rows), title)


def whole_buffer(call: Call) -> int:
    """The bytes of a call's whole buffer, as nccl-tests count them."""
    if call.name == "all_to_all" and call.peer is None:
        return sum(call.sent)
    if call.name in ("all_gather", "reduce_scatter", "gather", "scatter"):
        return call.sent[0] * len(call.members)
    return call.sent[0]


def bus_bytes(name: str, ranks: int, num_bytes: int) -> float:
    """The bytes that nccl-tests divide by the seconds, for their bus bandwidth."""
    if name == "all_reduce":
        return 2 * num_bytes * (ranks - 1) / ranks
    if name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return num_bytes * (ranks - 1) / ranks
    return num_bytes


class _Computing:
    """When a device computes."""

    def __init__(self, kernels: Sequence[tuple[float, float]]):
        self._spans = _merged(kernels)
        self._begins = [begin for begin, _ in self._spans]
        # seconds of computing before each of them
        lengths = (end - begin for begin, end in self._spans)
        self._before = [0.0, *itertools.accumulate(lengths)]

    def between(self, begin: float, end: float) -> float:
        """Seconds of computing from one time to another."""
        return self._until(end) - self._until(begin)

    def _until(self, time: float) -> float:
        place = bisect.bisect_right(self._begins, time)
        if place == 0:
            return 0.0
        last_begin, last_end = self._spans[place - 1]
        return self._before[place - 1] + min(time, last_end) - last_begin


def _merged(spans: Sequence[tuple[float, float]]) -> Spans:
    """Spans in order, without overlaps, as streams may compute at the same time."""
    merged: Spans = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
