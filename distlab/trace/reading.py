"""From what one rank recorded to its calls that communicate: pure functions, called by trace/assemble.py.

Runs on the notebook's kernel. Times are ns of the trace's clock.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect, bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distlab.trace.clocks import Offset

COLUMNS = 5  # of recorded["rows"]: place in the names, thread, start, duration, number
NEAR = 20_000  # ns by which the clocks of the profiler and of the flight recorder may differ
UNKNOWN = ("", 0, ())
FUNCTIONAL = "_c10d_functional::"  # collectives that return new tensors, as DTensor makes them, and waits for these
# collectives that C++ calls are known by the dispatcher's names only
PUBLIC = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}


class Row(NamedTuple):
    """One row of torch's profiler. `annotated`: the program chose the name. `number`: autograd's."""

    name: str
    annotated: bool
    thread: int
    start: int
    end: int
    number: int


@dataclass
class Call:
    """One call that communicates; `key` identifies its group on every rank: name, generation, ranks in the world.

    `posted` is when it gave the main thread back, `end` when it was known to be complete (None: never), `ready` when
    the partners that it needed had come (infinite: one never did; None: not known). `noted`: Python called it;
    `elsewhere`: on another thread than the main one, which did not wait in it.
    """

    rank: int
    kind: str
    op: str
    method: str
    key: tuple[str, int, tuple[int, ...]]
    num_bytes: int | None
    start: int
    posted: int
    end: int | None = None
    blocking: bool = False
    peer: int | None = None
    tag: int | None = None
    failed: bool = False
    waits: list[tuple[int, int]] = field(default_factory=list)
    ready: float | None = None
    noted: bool = True
    elsewhere: bool = False
    sequence: int | None = None  # of a message: its number since the group was built; None when this is not known

    @property
    def group(self) -> tuple[int, ...]:
        """The ranks in the world of its group."""
        return self.key[2]


def rows_of(recorded: Mapping[str, Any], offset: Offset, zero: int) -> list[Row]:
    """The profiler's rows in the order of their starts, outer ones first, in ns since `zero` on the trace's clock."""
    numbers = array("q")
    numbers.frombytes(recorded["rows"])
    begin, names = recorded["begin"], recorded["names"]
    rows = []
    for place, thread, start, length, number in zip(*[iter(numbers)] * COLUMNS, strict=True):
        began = offset.correct(begin + start) - zero
        rows.append(Row(*names[place], thread, began, began + length, number))
    return sorted(rows, key=lambda row: (row.start, -row.end))


def calls_of(rank: int, recorded: Mapping[str, Any], rows: Sequence[Row], offset: Offset, zero: int) -> list[Call]:
    """Every call of this rank that communicates, in the order of their starts."""
    keys = [(name, generation, tuple(ranks)) for name, generation, ranks in recorded["groups"]]

    def on_clock(time: int) -> int:
        return offset.correct(recorded["begin"] + time) - zero

    main = [row for row in rows if row.thread == recorded["main"]]
    calls = [noted(rank, call, keys[call["group"]], on_clock) for call in recorded["calls"] if call["end"] >= 0]
    flight = sorted((on_clock(time), keys[number], num_bytes) for time, number, num_bytes in recorded["flight"])
    calls += unnoted(rank, main, [call for call in calls if not call.elsewhere], flight)
    calls.sort(key=lambda call: call.start)
    find_ends(calls, [row for row in rows if row.name.startswith("gloo:") and row.thread != recorded["main"]])
    find_waits(calls, main)
    return calls


def noted(rank: int, told: Mapping[str, Any], key: tuple, on_clock: Callable[[int], int]) -> Call:
    """A call that Python made, from what tracing.Traced tells of it."""
    method, ranks = told["method"], key[2]
    start, posted = on_clock(told["start"]), on_clock(told["end"])
    waits = [(on_clock(start), on_clock(end)) for start, end, _ in told["waits"]]
    call = Call(rank, "collective", told["op"], method, key, told["num_bytes"], start, posted)
    other = max(told["peer"], told["root"], told["source"])
    call.failed, call.peer = told["failed"], ranks[other] if 0 <= other < len(ranks) else None
    # a wait inside of the call itself makes it a blocking one; so does no way to wait
    blocks = any(inside for *_, inside in told["waits"]) or method == "monitored_barrier" or (call.failed and not waits)
    call.elsewhere = told["elsewhere"]
    call.blocking = blocks and not call.elsewhere
    if not blocks and not call.elsewhere:
        call.waits = waits
    if waits or blocks or call.elsewhere:
        call.end = waits[-1][1] if waits else posted
    if method in ("send", "recv", "recv_anysource"):
        call.kind, call.tag = method[:4], told["tag"]
        call.op = call.kind if blocks else f"i{call.kind}"
        call.sequence = told["sequence"] or None
    return call


def family(name: str) -> str:
    """What the names of one collective in ProcessGroup, in the dispatcher and in gloo have in common."""
    return re.sub(r"^(c10d::|gloo:)|_|base|coalesced|single|into|tensor|sparse", "", name)


def unnoted(
    rank: int, main: Sequence[Row], calls: Sequence[Call], flight: Sequence[tuple[int, tuple, int]]
) -> list[Call]:
    """The collectives that C++ called, from the main thread's rows, with what the flight recorder knows of them."""
    starts, times = [call.start for call in calls], [time for time, *_ in flight]
    found = []
    for row in main:
        if not row.name.startswith("c10d::") or family(row.name) in ("send", "recv", "recvanysource"):
            continue
        before = bisect(starts, row.start) - 1
        if before >= 0 and row.start <= calls[before].posted:
            continue  # Python called it
        entries = flight[bisect_left(times, row.start - NEAR) : bisect(times, row.end + NEAR)]
        key = entries[0][1] if entries else UNKNOWN
        num_bytes = sum(entry[2] for entry in entries) if entries else None
        method = family(row.name)
        op = PUBLIC.get(method, row.name.removeprefix("c10d::").strip("_"))
        found.append(Call(rank, "collective", op, method, key, num_bytes, row.start, row.end, noted=False))
    return found


def find_ends(calls: Sequence[Call], rows: Sequence[Row]) -> None:
    """When collectives that did not block were complete: gloo's threads take the calls of a group in their order."""
    queues: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.kind == "collective":
            queues[family(call.method).replace("reducescatter", "allreduce")].append(call)
    key_of_thread: dict[int, tuple] = {}
    rows_of_call: Counter[int] = Counter()
    for row in rows:
        queue = queues[family(row.name)]
        while queue and queue[0].blocking and (queue[0].end or 0) + NEAR < row.start:
            queue.pop(0)
        fitting = (c for c in queue if c.start <= row.start + NEAR and key_of_thread.get(row.thread, c.key) == c.key)
        call = next(fitting, None)
        if call is None:
            continue
        key_of_thread[row.thread] = call.key
        rows_of_call[id(call)] += 1
        if not call.blocking:
            call.end = row.end if rows_of_call[id(call)] == 1 else max(call.end or 0, row.end)
        # gloo makes a reduce_scatter of lists out of one all_reduce for each rank
        if rows_of_call[id(call)] == (len(call.group) if call.method == "reduce_scatter" else 1):
            queue.remove(call)


def find_waits(calls: Sequence[Call], main: Sequence[Row]) -> None:
    """Waits that C++ made: where the main thread did nothing until a collective of C++'s was complete, or said so."""
    starts, ends = busy(main)
    said = [row for row in main if row.name == f"{FUNCTIONAL}wait_tensor"]
    for call in calls:
        by_python = call.elsewhere or (call.noted and not _inside_of_cpp(call, starts, ends))
        if call.kind != "collective" or call.blocking or call.waits or by_python or call.end is None:
            continue
        wait = next((row for row in said if row.start <= call.end <= row.end), None)
        after = bisect_left(starts, call.end - NEAR)
        idle_since = ends[after - 1] if after else 0
        if wait is not None:
            call.waits = [(wait.start, wait.end)]
        elif call.posted + NEAR < idle_since < call.end:
            call.waits = [(idle_since, starts[after] if after < len(starts) else call.end)]
        elif idle_since < call.end:
            call.blocking = True


def busy(main: Sequence[Row]) -> tuple[list[int], list[int]]:
    """Starts and ends of the times in which the main thread was in a torch call, whatever the program named."""
    starts: list[int] = []
    ends: list[int] = []
    for row in main:
        if row.annotated:
            continue
        if ends and row.start <= ends[-1]:
            ends[-1] = max(ends[-1], row.end)
        else:
            starts.append(row.start)
            ends.append(row.end)
    return starts, ends


def _inside_of_cpp(call: Call, starts: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether torch called the Python code that made the call, as backward does with a hook."""
    place = bisect(starts, call.start) - 1
    return place >= 0 and starts[place] < call.start - NEAR // 20 and ends[place] > call.posted
