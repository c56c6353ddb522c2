"""The computation of one rank, as a person thinks of it: forward, backward, optimizer.

Pure functions, called by read.py. Runs on the notebook's kernel. A training step has hundreds of
torch calls; here they become a few blocks, each of one kind and without a wait in it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from distlab.traces.ends import FUNCTIONAL
from distlab.traces.events import CallEvent, Event
from distlab.wire.recorded import TorchRow

PYTHON_JITTER = 1e-6  # seconds by which the clocks of the profiler and of Python may differ
# seconds of plain Python between two torch calls that count as one computation
LONGEST_GAP = 200e-6
MAINLY = 0.8  # share of a block's time above which one torch call gives it its name
BACKWARD_ROWS = ("autograd::engine::evaluate_function", "torch.distributed.ddp.reducer")
COMMUNICATION = ("c10d::", "gloo:", FUNCTIONAL)
# shown whole, by how they begin
OPAQUE = {"DistributedDataParallel.forward": "forward", "Optimizer.": "optimizer"}

Block = tuple[str, list[TorchRow]]  # torch calls of one kind that follow each other


def computation_of(rank: int, main: Sequence[TorchRow], calls: Sequence[CallEvent]) -> list[Event]:
    """The computation of the main thread as blocks.

    Args:
        rank: of the events.
        main: the main thread's rows, outer ones before inner ones.
        calls: this rank's calls that communicate; what they do inside is not computation.
    """
    rows = list(outermost(main, calls))
    kinds = kinds_of(rows, main)
    computation = []
    for kind, block in merge(rows, kinds, starts_of_waiting(calls)):
        event = Event(
            rank=rank,
            kind=kind,
            op=op_of(kind, block),
            start=block[0].start,
            end=block[-1].end,
        )
        computation.append(event)
    return computation


def op_of(kind: str, rows: Sequence[TorchRow]) -> str:
    """The name of a block: the torch call that it mainly consists of, or its kind without one."""
    if kind != "compute":
        return kind
    seconds: dict[str, float] = defaultdict(float)
    for row in rows:
        seconds[row.name] += row.end - row.start
    name = max(seconds, key=seconds.__getitem__)
    all_seconds = sum(seconds.values())
    if seconds[name] >= MAINLY * all_seconds:
        return name.removeprefix("aten::")
    return kind


def outermost(main: Sequence[TorchRow], calls: Sequence[CallEvent]) -> Iterator[TorchRow]:
    """The torch calls inside no other one, without those that communicate and without named ranges.

        main    [ Optimizer.step                ]   [ c10d::send ]   [ my range              ]
                   [ aten::mul ] [ aten::add ]        [ record ]        [ aten::mm ]
        yields  Optimizer.step                                          aten::mm

    What is inside an outer call is part of it. A range that the program named is no torch call, so
    the calls in it are looked at instead; those of OPAQUE are named by torch, and count whole.
    """
    end_of_outer = -1.0
    for row, by_python in zip(main, _inside_calls(main, calls), strict=True):
        if row.start < end_of_outer:
            continue
        communicates = by_python or row.name.startswith(COMMUNICATION)
        is_named_range = row.annotated and not row.name.startswith(tuple(OPAQUE))
        if communicates:
            end_of_outer = row.end
        elif not is_named_range:
            end_of_outer = row.end
            yield row


def _inside_calls(main: Sequence[TorchRow], calls: Sequence[CallEvent]) -> Iterator[bool]:
    """For each row, whether it began inside a call that communicates.

    Such a row is part of the call, under whatever name torch has for it. The call's times are from
    Python and the row's from the profiler: a row may seem to begin up to PYTHON_JITTER before its
    call.
    """
    on_main = [event.call for event in calls if not event.call.elsewhere]
    place = 0  # of the first call that had not returned when the row began
    for row in main:
        while place < len(on_main) and on_main[place].posted < row.start:
            place += 1
        if place == len(on_main):
            yield False
        else:
            yield on_main[place].start <= row.start + PYTHON_JITTER


def kinds_of(rows: Sequence[TorchRow], main: Sequence[TorchRow]) -> Iterator[str]:
    """What each call is: backward, forward if its gradient was computed later, otherwise compute.

    autograd numbers the calls that leave something for backward, and backward has the same number.
    A call that leaves nothing has the number of the next one that does: of several calls with one
    number, only the last is forward.
    """
    numbers_of_backward = set()
    for row in main:
        if _is_backward(row) and row.number >= 0:
            numbers_of_backward.add(row.number)
    last_place: dict[int, int] = {}  # by number
    for place, row in enumerate(rows):
        if not _is_backward(row):
            last_place[row.number] = place
    for place, row in enumerate(rows):
        opaque = _kind_if_opaque(row)
        if opaque is not None:
            yield opaque
        elif _is_backward(row):
            yield "backward"
        elif row.number in numbers_of_backward and last_place[row.number] == place:
            yield "forward"
        else:
            yield "compute"


def _is_backward(row: TorchRow) -> bool:
    return row.name.startswith(BACKWARD_ROWS)


def _kind_if_opaque(row: TorchRow) -> str | None:
    """The kind of a call that is shown whole, or None for any other call."""
    for start, kind in OPAQUE.items():
        if row.name.startswith(start):
            return kind
    return None


def starts_of_waiting(calls: Sequence[CallEvent]) -> list[float]:
    """When the rank began to wait, in order: in calls that blocked, and in waits for others."""
    starts = [event.start for event in calls if event.blocking]
    for event in calls:
        starts += [start for start, _ in event.call.waits]
    return sorted(starts)


def merge(
    rows: Sequence[TorchRow], kinds: Iterable[str], starts_of_waiting: Sequence[float]
) -> list[Block]:
    """Calls of one kind that follow each other closely, as one block; never across a wait.

    Between two torch calls a program runs some plain Python, for up to LONGEST_GAP: a bar for each
    call would show nothing. A longer gap is plain Python that counts, and the time of a wait is not
    computation.
    """
    merged: list[Block] = []
    for row, kind in zip(rows, kinds, strict=True):
        if merged and _extends(merged[-1], row, kind, starts_of_waiting):
            _, block = merged[-1]
            block.append(row)
        else:
            merged.append((kind, [row]))
    return merged


def _extends(last: Block, row: TorchRow, kind: str, starts_of_waiting: Sequence[float]) -> bool:
    """Whether a call goes into the last block."""
    kind_of_block, block = last
    if kind != kind_of_block:
        return False
    end = block[-1].end
    waits_before_end = bisect_left(starts_of_waiting, end)
    waits_before_row = bisect_left(starts_of_waiting, row.start)
    has_waited = waits_before_end < waits_before_row
    return row.start - end <= LONGEST_GAP and not has_waited
