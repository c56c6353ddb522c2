"""When calls that did not block were complete, and which waits for them torch made itself.

Pure functions over what one rank recorded, called by read.py. Runs on the notebook's kernel. They
change no event: read.py, which makes the events, fills in what is found here.
"""

from __future__ import annotations

import re
from bisect import bisect, bisect_left
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from distlab.traces.events import CallEvent
from distlab.wire.recorded import GroupKey, TorchRow

# seconds by which the clocks of the profiler and of the flight recorder may differ
RECORDER_JITTER = 20e-6
SOON = 200e-6  # seconds within which a call that C++ has begun gives its thread back
# collectives that return new tensors, as DTensor makes them, and waits for them
FUNCTIONAL = "_c10d_functional::"


class Gap(NamedTuple):
    """Seconds in which the main thread was in no torch call."""

    start: float
    end: float


class OwnWait(NamedTuple):
    """How torch itself waited for a collective that it called.

    Attributes:
        blocked: whether the call itself blocked until it was complete.
        waits: otherwise, the waits for it as (start, end).
    """

    blocked: bool
    waits: list[tuple[float, float]]


def family(name: str) -> str:
    """What the names of a collective in ProcessGroup, flight recorder and gloo have in common."""
    return re.sub(r"^gloo:|_|base|coalesced|single|into|tensor|sparse", "", name)


# --- the end of a collective that did not block ---


def ends_by_gloo(
    events: Sequence[CallEvent], rows: Sequence[TorchRow]
) -> list[tuple[CallEvent, float]]:
    """When collectives that did not block were complete: at the ends of gloo's own rows.

        main thread    [all_reduce]  ...           [wait() of the program]
        gloo's thread                [gloo:all_reduce]
                                                     ^ the end

    The program's own wait may come long after the collective was complete, and one that C++ called
    has none, so the end is taken from gloo's thread. A row does not say which call it is of. Each
    group has its own threads, and these take the calls of the group in order; so a row is of the
    first call of its family that no row was found for yet.

    Args:
        events: the calls of the rank, in the order of their starts.
        rows: those of gloo's threads, in the order of their starts.
    """
    queues: dict[str, list[CallEvent]] = {}  # by family, calls that no row was found for yet
    for event in events:
        if event.kind == "collective" and not event.blocking:
            queues.setdefault(_family_in_gloo(event), []).append(event)
    group_of_thread: dict[int, GroupKey] = {}
    found = []
    for row in rows:
        queue = queues.get(family(row.name), [])
        served = _first_served(queue, row, group_of_thread.get(row.thread))
        if served is not None:
            group_of_thread[row.thread] = served.call.group
            queue.remove(served)
            found.append((served, row.end))
    return found


def _family_in_gloo(event: CallEvent) -> str:
    """The family of gloo's rows for a call.

    gloo makes a reduce_scatter from all_reduces; its end is taken to be the end of the first one.
    """
    return family(event.call.method).replace("reducescatter", "allreduce")


def _first_served(
    queue: Sequence[CallEvent], row: TorchRow, group: GroupKey | None
) -> CallEvent | None:
    """The first call that a row of gloo's can be of.

    The call must have begun before the row, and the clocks differ by up to RECORDER_JITTER: the
    start of a call of C++ is from the flight recorder, that of the row from the profiler. A thread
    that has served a group serves no other one, or the calls of two groups would be mixed up.

    Args:
        queue: calls of the row's family that no row was found for yet.
        row: of gloo's thread.
        group: the one that this thread serves; None as long as this is not known.
    """
    for event in queue:
        had_begun = event.start <= row.start + RECORDER_JITTER
        may_be_its_group = group is None or group == event.call.group
        if had_begun and may_be_its_group:
            return event
    return None


# --- waits that torch made itself ---


def waits_by_torch(
    events: Sequence[CallEvent], main: Sequence[TorchRow]
) -> list[tuple[CallEvent, OwnWait]]:
    """How torch itself waited for the collectives that it called, where it did.

    Nothing records these waits: DistributedDataParallel calls, and waits, in C++. They are found in
    what the main thread did around the end of the collective.

    Args:
        events: the calls of the rank; `end` is known where gloo's rows have it.
        main: the main thread's rows, outer ones before inner ones.
    """
    outer = OuterRows(main)
    functional = [row for row in main if row.name.startswith(FUNCTIONAL)]
    found = []
    for event in events:
        if not _may_be_waited_for_by_torch(event):
            continue
        is_functional = any(row.start <= event.call.start <= row.end for row in functional)
        if is_functional:
            waits = _waits_of_functional(functional, event.end)
            found.append((event, OwnWait(blocked=False, waits=waits)))
            continue
        own_wait = _wait_in_gap(event, outer)
        if own_wait is not None:
            found.append((event, own_wait))
    return found


def _may_be_waited_for_by_torch(event: CallEvent) -> bool:
    """Whether an event is a collective in flight on the main thread without a recorded wait."""
    if event.kind != "collective" or event.blocking:
        return False
    its_end_is_known = event.end != inf
    return its_end_is_known and not event.call.waits and not event.call.elsewhere


def _waits_of_functional(functional: Sequence[TorchRow], end: float) -> list[tuple[float, float]]:
    """The waits for a functional collective that was complete at `end`: torch has rows for them.

        main thread    [_c10d_functional::all_reduce]  ...  [_c10d_functional::wait_tensor]
        gloo's thread                    [gloo:all_reduce                   ]

    A wait that does not contain the end is for another collective, or for one that was complete
    already.
    """
    waits = []
    for row in functional:
        if row.name.endswith("::wait_tensor") and row.start <= end <= row.end:
            waits.append((row.start, row.end))
    return waits


def _wait_in_gap(event: CallEvent, outer: OuterRows) -> OwnWait | None:
    """The wait for a collective of C++: the gap of the main thread in which it became complete.

        main thread    [backward ... all_reduce ...]            [copy_bucket_to_grad]
        gloo's thread                  [gloo:all_reduce         ]
                                                   |<-- wait -->|

    Only for a call that was made inside a torch call: any other gap is plain Python. If the thread
    has done nothing since the call, there was no wait apart from it: the call itself blocked. Its
    torch call then ends within SOON of the call.

    Returns:
        None if the call was made by the program, or if the thread was busy when it was complete.
    """
    call = event.call
    caller = outer.last_begun_at(call.start)
    if caller is None or call.posted >= caller.end:
        return None
    gap = outer.gap_at(event.end)
    if gap is None:
        return None
    if gap.start < call.posted + SOON:
        return OwnWait(blocked=True, waits=[])
    return OwnWait(blocked=False, waits=[(gap.start, gap.end)])


class OuterRows:
    """When the main thread was in a torch call: the rows that are inside no other one.

    Ranges that the program named do not count, because the thread may do anything in them.
    """

    def __init__(self, main: Sequence[TorchRow]):
        self.rows: list[TorchRow] = []
        for row in main:
            is_inside = bool(self.rows) and row.start < self.rows[-1].end
            if not row.annotated and not is_inside:
                self.rows.append(row)
        self.starts = [row.start for row in self.rows]

    def last_begun_at(self, time: float) -> TorchRow | None:
        """The last row that had begun at a time, or None before the first one."""
        begun = bisect(self.starts, time)
        if begun == 0:
            return None
        return self.rows[begun - 1]

    def gap_at(self, end: float) -> Gap | None:
        """The gap in which a collective became complete, or None if there is none.

        There is none if the thread was in a torch call, or had made none before. The thread goes on
        as soon as the collective is complete. By the clocks its next row may begin up to
        RECORDER_JITTER before that end, and is still the one after the gap.
        """
        begun = bisect_left(self.starts, end - RECORDER_JITTER)
        if begun == 0:
            return None
        last = self.rows[begun - 1]
        if last.end >= end:
            return None
        until = end
        if begun < len(self.starts):
            until = self.starts[begun]
        return Gap(last.end, until)
