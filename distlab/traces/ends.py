"""When calls that did not block were complete, and which waits for them torch made itself.

Pure functions, called by read.py. Runs on the notebook's kernel.
"""

import re
from bisect import bisect, bisect_left
from collections.abc import Sequence
from math import inf

from distlab.traces.events import Event
from distlab.wire.recorded import GroupKey, TorchRow
from distlab.words import grouped

NEAR = 20e-6  # seconds by which the clocks of the profiler and of the flight recorder may differ
SOON = 200e-6  # seconds within which a call that C++ has begun gives its thread back
# collectives that return new tensors, as DTensor makes them, and waits for them
FUNCTIONAL = "_c10d_functional::"


def family(name: str) -> str:
    """What the names of one collective in ProcessGroup, in the flight recorder and in gloo have in
    common.
    """
    return re.sub(r"^gloo:|_|base|coalesced|single|into|tensor|sparse", "", name)


def find_ends(events: Sequence[Event], rows: Sequence[TorchRow]) -> None:
    """Find when collectives that did not block were complete: gloo's threads take the calls of a
    group in order.

    gloo makes a reduce_scatter from all_reduces; its end is taken to be the end of the first one.
    """
    flying = [event for event in events if event.kind == "collective" and not event.blocking]
    queues = grouped(
        (family(event.call.method).replace("reducescatter", "allreduce"), event) for event in flying
    )
    group_of_thread: dict[int, GroupKey] = {}
    for row in rows:
        queue = queues.get(family(row.name), [])
        begun = (event for event in queue if event.start <= row.start + NEAR)
        event = next(
            (e for e in begun if group_of_thread.get(row.thread, e.call.group) == e.call.group),
            None,
        )
        if event is not None:
            group_of_thread[row.thread] = event.call.group
            event.end = row.end
            queue.remove(event)


def find_waits(events: Sequence[Event], main: Sequence[TorchRow]) -> None:
    """Find torch's own waits for collectives that it called: the main thread did nothing until one
    was complete.

    If it had done nothing since the call, the call itself was blocking. Functional collectives have
    their own wait.
    """
    # in which the main thread was in a torch call, whatever the program named
    outer: list[TorchRow] = []
    for row in main:
        if not row.annotated and (not outer or row.start >= outer[-1].end):
            outer.append(row)
    starts, ends = [row.start for row in outer], [row.end for row in outer]
    functional = [row for row in main if row.name.startswith(FUNCTIONAL)]
    for event in events:
        call = event.call
        if (
            event.kind != "collective"
            or event.blocking
            or call.waits
            or call.elsewhere
            or event.end == inf
        ):
            continue
        before, after = bisect(starts, call.start), bisect_left(starts, event.end - NEAR)
        idle_since = ends[after - 1] if after else inf
        if any(row.start <= call.start <= row.end for row in functional):
            waits = (row for row in functional if row.name.endswith("::wait_tensor"))
            call.waits = [
                (row.start, row.end) for row in waits if row.start <= event.end <= row.end
            ]
        elif before and call.posted < ends[before - 1] and idle_since < event.end:
            event.blocking = idle_since < call.posted + SOON
            if not event.blocking:
                call.waits = [(idle_since, starts[after] if after < len(starts) else event.end)]
