"""Recording what this rank does: torch's profiler, and what calls.py notes of every call and every wait.

Runs on a rank, called by name from trace/record.py. Nothing of it is there while no trace is recorded.

The profiler times all that torch does, but it knows neither the group of a call, nor who sent what a rank received from
anybody, nor when the main thread waits. So each call that Python makes is a range of the profiler's with a number, and
so is each wait for one. It records the thread of the cells alone; calls and waits on others, as in a callback of a
Future, are timed here. Collectives that C++ calls, as DistributedDataParallel does, have no number; torch's flight
recorder knows their group.
"""

from __future__ import annotations

import json
import sys
import threading
from array import array
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import torch
from torch.autograd.profiler import profile
from torch.distributed import distributed_c10d as c10d

from distlab import clock
from distlab.notes import NOTES, POINT_TO_POINT, Note

POST, WAIT, MAIN = "distlab post", "distlab wait", "distlab main"  # names of ranges, the first two with a number
FIRST = (*POINT_TO_POINT, "allreduce", "allreduce_coalesced", "broadcast", "reduce")  # the tensors come first


@dataclass
class Traced:
    """One call that communicates, as plain values. `peer`, `root` and `source` are ranks in the group, -1 for none."""

    op: str  # the function that the program called: "send", "all_gather_object"
    method: str  # of ProcessGroup
    group: int  # its number
    num_bytes: int  # that this rank gives, or receives into
    peer: int
    tag: int
    sequence: int = 0  # among the messages of this group, direction, peer and tag since the group was built; 0 unknown
    root: int = -1
    source: int = -1  # who sent what was received from anybody
    failed: bool = False
    start: int = -1  # ns since the recording began
    end: int = -1
    elsewhere: bool = False  # on another thread than the cells
    waits: list[tuple[int, int, bool]] = field(default_factory=list)  # start, end; whether inside of the call itself


class Recording:
    """A trace in the making: what calls.py tells it of calls and waits while the profiler runs."""

    def __init__(self, profiler: profile) -> None:
        self.profiler = profiler
        self.calls: list[Traced] = []
        self.waits: list[tuple[int, bool]] = []  # number of the call; whether inside of it
        self._main, self._lock = threading.get_ident(), threading.Lock()
        self.groups: dict[tuple[str, int], tuple[int, list[int]]] = {}  # by name and generation: number, ranks
        self.generations: list[int] = []  # when the default group was made anew, in ns
        self._numbers: dict[Note, int] = {}
        self._update_default_group = c10d._update_default_pg
        c10d._update_default_pg = self._count
        self.note_groups()

    def call(self, note: Note, values: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Make the call of a note, and record it."""
        given = values[:1] if note.method in FIRST else values[1:2] if note.method != "monitored_barrier" else ()
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(given))
        group = self._number_of(note.group)
        call = Traced(note.op or note.method, note.method, group, num_bytes, note.peer, note.tag)
        call.root = next((value.rootRank for value in values if hasattr(value, "rootRank")), -1)
        call.elsewhere = threading.get_ident() != self._main
        with self._lock:
            number = self._numbers[note] = len(self.calls)
            self.calls.append(call)
        if not call.elsewhere:
            with torch._C._profiler._RecordFunctionFast(f"{POST}{number}"):
                return _told(call, make)
        call.start = clock.now()
        try:
            return _told(call, make)
        finally:
            call.end = clock.now()

    def wait(self, note: Note, work: Any, make: Callable[[], Any]) -> Any:
        """Make a wait for the call of a note, and record it."""
        number = self._numbers.get(note)
        if number is None:
            return make()
        inside = sys._getframe(2).f_globals.get("__name__") == c10d.__name__  # who called Work.wait
        call = self.calls[number]
        if threading.get_ident() == self._main:
            self.waits.append((number, inside))
            with torch._C._profiler._RecordFunctionFast(f"{WAIT}{len(self.waits) - 1}"):
                done = _told(call, make)
        else:
            began = clock.now()
            done = _told(call, make)
            if call.elsewhere:
                call.waits.append((began, clock.now(), inside))
        if call.method == "recv_anysource" and isinstance(work, c10d.Work):
            call.source = work._source_rank()
        return done

    def end(self) -> None:
        """Listen no more."""
        c10d._update_default_pg = self._update_default_group
        for note, number in self._numbers.items():
            # a message that was received from anybody was not counted as its sender's
            from_anybody = note.method != "send" and (False, note.group, -1, note.tag) in NOTES.traffic
            self.calls[number].sequence = 0 if from_anybody else note.sequence

    def _number_of(self, name: str) -> int:
        """The number of a group. Groups of different generations may have the same name and are not the same."""
        key = (name, len(self.generations))
        if key not in self.groups:
            self.note_groups()
        return self.groups.setdefault(key, (len(self.groups), []))[0]

    def note_groups(self) -> None:
        """Number the groups that there are."""
        for group, ranks in list(c10d._world.pg_group_ranks.items()):
            if isinstance(group, c10d.ProcessGroup):  # and not the mark of a group that this rank is not in
                key = (c10d._world.pg_names[group], len(self.generations))
                self.groups.setdefault(key, (len(self.groups), list(ranks)))

    def _count(self, group: Any) -> None:
        self._update_default_group(group)
        if group is not None:
            self.generations.append(clock.now())


def start() -> str:
    """Begin to record.

    Runs on: a rank, on its main thread.

    Returns:
        the name of the clock that the times will be of.

    Raises:
        RuntimeError: a profiler runs on this rank already.
    """
    if NOTES.tracer is not None:
        stop()  # the notebook could not end it
    if torch._C._autograd._profiler_enabled():
        raise RuntimeError("a profiler runs there already")
    profiler = profile(use_kineto=True)
    profiler.__enter__()
    with torch._C._profiler._RecordFunctionFast(MAIN):
        NOTES.tracer = Recording(profiler)
    return clock.name()


def stop() -> dict[str, Any] | None:
    """End the recording and tell what was recorded, as plain values; None when none was being made.

    Runs on: a rank, on the thread that started it.

    Returns:
        a dict: begin, in ns of this machine's clock; main, the thread of cells; calls, each `Traced` as a dict; groups
        by number: name, generation, ranks in the world; rows of the profiler as int64: place in names, thread, start in
        ns since begin, duration in ns, autograd's number; names, and whether the program chose them; flight, see
        `_flight_recorder`.

    Raises:
        RuntimeError: another profiler took the place of this one, and nothing was recorded.
    """
    recording, NOTES.tracer = NOTES.tracer, None
    if recording is None:
        return None
    recording.end()
    if not torch._C._autograd._profiler_enabled():
        raise RuntimeError("what ran there used a profiler of its own, which ended the trace's")
    recording.profiler.__exit__(None, None, None)
    results = recording.profiler.kineto_results
    begin, main, dispatched = results.trace_start_ns(), -1, 0
    elsewhere = [call for call in recording.calls if call.elsewhere]
    for call in elsewhere:
        call.start, call.end = call.start - begin, call.end - begin
        call.waits = [(start - begin, end - begin, inside) for start, end, inside in call.waits]
    names: dict[tuple[str, bool], int] = {}
    rows = array("q")
    for event in results.events():
        name, start, length = event.name(), event.start_ns() - begin, event.duration_ns()
        if name.startswith(POST):
            call = recording.calls[int(name[len(POST) :])]
            call.start, call.end = start, start + length
        elif name.startswith(WAIT):
            number, inside = recording.waits[int(name[len(WAIT) :])]
            recording.calls[number].waits.append((start, start + length, inside))
        elif name == MAIN:
            main = event.start_thread_id()
        else:
            dispatched += name.startswith("c10d::")
            place = names.setdefault((name, event.is_user_annotation()), len(names))
            rows.extend((place, event.start_thread_id(), start, length, event.sequence_nr()))
    flight = _flight_recorder(recording, begin) if dispatched > len(recording.calls) - len(elsewhere) else []
    return {
        "begin": begin,
        "main": main,
        "calls": [asdict(call) for call in recording.calls],
        "groups": [(*key, ranks) for key, (_, ranks) in recording.groups.items()],
        "rows": rows.tobytes(),
        "names": list(names),
        "flight": flight,
    }


def _told(call: Traced, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except BaseException:
        call.failed = True
        raise


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists of lists of tensors."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _flight_recorder(recording: Recording, begin: int) -> list[tuple[int, int, int]]:
    """Collectives since `begin`, as torch's flight recorder has them: ns since then, number of the group, bytes.

    The recorder is a ring: of more collectives than it holds, 2,000 if nobody changed that, it forgets the first.
    """
    recording.note_groups()
    found = []
    for entry in json.loads(torch._C._distributed_c10d._dump_fr_trace_json()).get("entries", []):
        created = entry["time_created_ns"]
        key = (entry["process_group"][0], bisect(recording.generations, created))
        if created >= begin and key in recording.groups:
            found.append((created - begin, recording.groups[key][0], _bytes_of(entry)))
    return found


def _bytes_of(entry: dict[str, Any]) -> int:
    sizes = zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
    return sum(prod(size) * getattr(torch, f"{dtype}Tensor").dtype.itemsize for size, dtype in sizes)
