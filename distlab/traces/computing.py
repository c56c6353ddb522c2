"""The computation of one rank, as a person thinks of it: forward, backward, optimizer.

Pure functions, called by read.py. Runs on the notebook's kernel.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from distlab.traces.ends import FUNCTIONAL
from distlab.traces.events import Event
from distlab.wire.recorded import TorchRow

JITTER = 1e-6  # seconds by which the clocks of the profiler and of Python may differ
GAP = 200e-6  # seconds of plain Python between two torch calls that count as one computation
BACKWARD = ("autograd::engine::evaluate_function", "torch.distributed.ddp.reducer")
# shown whole, by how they begin
OPAQUE = {"DistributedDataParallel.forward": "forward", "Optimizer.": "optimizer"}

Block = tuple[str, list[TorchRow]]  # torch calls of one kind that follow each other


def computation_of(rank: int, main: Sequence[TorchRow], calls: Sequence[Event]) -> list[Event]:
    """The computation of the main thread as blocks.

    Args:
        main: the main thread's rows, outer ones before inner ones.
        calls: this rank's calls that communicate; what they do inside is not computation.
    """
    rows = [*outermost(main, calls)]
    held = [event.start for event in calls if event.blocking]
    held += [start for event in calls for start, _ in event.call.waits]
    blocks = merge(rows, kinds_of(rows, main), sorted(held))
    return [
        Event(rank, kind, op_of(kind, block), block[0].start, block[-1].end)
        for kind, block in blocks
    ]


def op_of(kind: str, rows: Sequence[TorchRow]) -> str:
    """The torch call that a block consists of, if it is a single one; else its kind."""
    lengths: Counter[str] = Counter()
    for row in rows:
        lengths[row.name] += row.end - row.start
    name, length = lengths.most_common(1)[0]
    return (
        name.removeprefix("aten::")
        if kind == "compute" and length >= 0.8 * lengths.total()
        else kind
    )


def outermost(main: Sequence[TorchRow], calls: Sequence[Event]) -> Iterator[TorchRow]:
    """The torch calls that are inside no other one, without those that communicate and without
    named ranges.
    """
    inside = [event.call for event in calls if not event.call.elsewhere]
    covered, place = -1.0, 0
    for row in main:
        while place < len(inside) and inside[place].posted < row.start:
            place += 1
        by_python = place < len(inside) and inside[place].start <= row.start + JITTER
        communicates = by_python or row.name.startswith(("c10d::", "gloo:", FUNCTIONAL))
        named = row.annotated and not communicates and not row.name.startswith(tuple(OPAQUE))
        if row.start >= covered and not named:
            covered = row.end
            if not communicates:
                yield row


def kinds_of(rows: Sequence[TorchRow], main: Sequence[TorchRow]) -> Iterator[str]:
    """What each call is: it is forward if its gradient was computed later, as autograd's numbers
    tell.
    """
    backward = {row.number for row in main if row.name.startswith(BACKWARD) and row.number >= 0}
    # a call that leaves nothing for backward has the number of the next one
    last = {
        row.number: place for place, row in enumerate(rows) if not row.name.startswith(BACKWARD)
    }
    for place, row in enumerate(rows):
        followed = row.number in backward and last.get(row.number) == place
        kind = "backward" if row.name.startswith(BACKWARD) else "forward" if followed else "compute"
        yield next((whole for start, whole in OPAQUE.items() if row.name.startswith(start)), kind)


def merge(rows: Sequence[TorchRow], kinds: Iterable[str], held: Sequence[float]) -> list[Block]:
    """Calls of one kind that follow each other closely, as one block; never across a time of
    waiting, in `held`.
    """
    merged: list[Block] = []
    for row, kind in zip(rows, kinds, strict=True):
        last_kind, last = merged[-1] if merged else ("", [row])
        waited = bisect_left(held, last[-1].end) < bisect_left(held, row.start)
        if last_kind == kind and row.start - last[-1].end <= GAP and not waited:
            last.append(row)
        else:
            merged.append((kind, [row]))
    return merged
