"""Records what this rank does: torch's profiler, and what hooks.py notes of calls and waits.

Runs on a rank, called through entry.py by notebook/tracing.py. It costs nothing while no trace is
recorded.

The profiler times all that torch does, but it does not know the group of a call, nor who sent what
a rank received from any source, nor when the main thread waits. So each call that Python makes is
noted here with its times, and so is each wait for one. Collectives that C++ calls, like those of
DistributedDataParallel, are in torch's flight recorder.
"""

import sys
import threading
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import prod
from time import time_ns  # the times of torch's profiler are of the same clock, to within 1 µs
from typing import Any

import torch
from torch.autograd.profiler import profile
from torch.distributed import distributed_c10d as c10d

from distlab.compat.torch import flight_record, is_profiling, sender_of
from distlab.rank.log import LOG, Note
from distlab.rank.membership import members_of
from distlab.rank.message_counter import Kind
from distlab.rank.methods import ANY_SOURCE, IMMEDIATE, ROOTED
from distlab.rank.plugins import PLUGINS
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.messages import REMOTE, SERVED
from distlab.wire.recorded import GroupKey, Recorded, RecordedCall, TorchRow

CLOCK_DIFFERENCE = 20_000  # ns by which the clocks of the flight recorder and of Python may differ


class Recording:
    """A trace in the making: what hooks.py tells it of calls and waits while the profiler runs."""

    def __init__(self, profiler: profile) -> None:
        self.profiler = profiler
        self.began = time_ns()
        # by note; a call that is not waited for by a note has a key of its own
        self.calls: dict[Any, RecordedCall] = {}
        self._main = threading.get_ident()
        self._groups: dict[tuple[str, str], GroupKey] = {}  # by name and generation

    def call(self, note: Note, make: Callable[[], Any]) -> Any:
        """Make the call of a note, and record it."""
        group = self._group_of(note.group)
        call = RecordedCall(
            op=note.op or note.method,
            method=note.method,
            group=group,
            num_bytes=_bytes_of_note(note, group),
            peer=_member(group, note.root if note.method in ROOTED else note.peer),
            tag=note.tag,
        )
        call.elsewhere = threading.get_ident() != self._main
        call.blocking = not (call.elsewhere or note.is_async or note.op in IMMEDIATE)
        self.calls[note] = call
        call.start = time_ns()
        try:
            return make()
        except BaseException:
            call.failed = True
            raise
        finally:
            call.posted = time_ns()
            if call.blocking or call.elsewhere:
                call.end = call.posted

    def remote(
        self,
        method: str,
        op: str,
        number: int,
        peer: int | None = None,
        blocking: bool = False,
        note: Note | None = None,
    ) -> RecordedCall:
        """Record a remote call that begins now; the caller of this knows when it ends.

        Args:
            method: REMOTE or SERVED.
            op: what is shown of it.
            number: the number by which its two ends find each other.
            peer: the rank at the other end.
            blocking: whether the caller waits for it at once.
            note: the note by which it is waited for.
        """
        call = RecordedCall(
            op=op,
            method=method,
            group=("", "", ()),
            num_bytes=0,
            peer=peer,
            sequence=number,
            blocking=blocking,
        )
        call.elsewhere = threading.get_ident() != self._main
        call.start = time_ns()
        call.posted = call.start
        self.calls[note or object()] = call
        return call

    def wait(self, note: Note, work: Any, make: Callable[[], Any]) -> Any:
        """Make a wait for the call of a note, and record it."""
        call = self.calls.get(note)
        if call is None:
            return make()
        began = time_ns()
        try:
            done = make()
        except BaseException:
            call.failed = True
            raise
        finally:
            if call.method == REMOTE:  # its end was noted when the answer came
                ended(call, began)
            elif call.elsewhere or threading.get_ident() == self._main:
                call.end = time_ns()
                if not (call.elsewhere or call.blocking):
                    call.waits.append((began, call.end))
        if call.method == "recv_anysource" and isinstance(work, c10d.Work):
            call.peer = _member(call.group, sender_of(work))
        return done

    def calls_by_python(self) -> list[RecordedCall]:
        """What was noted, without what is still under way."""
        for note, call in self.calls.items():
            if call.method in (REMOTE, SERVED):
                continue
            # a message that was received from anybody was not counted as its sender's
            anybodys = Kind(is_send=False, group=note.group, peer=ANY_SOURCE, tag=note.tag)
            from_anybody = note.method != "send" and anybodys in LOG.messages.begun
            call.sequence = 0 if from_anybody else note.sequence
        return [call for call in self.calls.values() if call.posted]

    def calls_by_cpp(self, by_python: Sequence[RecordedCall]) -> Iterator[RecordedCall]:
        """The collectives in torch's flight recorder that Python did not call.

        The recorder is a ring: it holds 2,000 collectives, unless somebody changed that, and
        forgets older ones.
        """
        calls = _Calls(by_python)
        for entry in flight_record():
            created = entry["time_created_ns"]
            if created < self.began or calls.were_made_at(created):
                continue
            name = entry["profiling_name"].removeprefix("gloo:")
            yield RecordedCall(
                op=name,
                method=name,
                group=self._group_of(entry["process_group"][0]),
                num_bytes=_bytes_of_entry(entry),
                start=created,
                posted=created,
            )

    def _group_of(self, name: str) -> GroupKey:
        """What identifies a group of this generation, which may have been destroyed since."""
        key = (name, THIS_RANK.generation)
        if key not in self._groups:
            self._groups[key] = (*key, members_of(name) or LOG.members.get(name, ()))
        return self._groups[key]


class _Calls:
    """The times at which some calls were being made."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        ordered = sorted(calls, key=lambda call: call.start)
        self._starts = [call.start for call in ordered]
        # when the last of the calls up to each one had been made
        self._over = list(accumulate((call.posted for call in ordered), max))

    def were_made_at(self, time: int) -> bool:
        """Whether one of the calls was being made at a time of the flight recorder."""
        begun_before = bisect(self._starts, time + CLOCK_DIFFERENCE)
        if begun_before == 0:
            return False
        return time - CLOCK_DIFFERENCE <= self._over[begun_before - 1]


def _bytes_of_note(note: Note, group: GroupKey) -> int:
    """The bytes of a call's full buffer."""
    count = 0
    for dtype, shape in note.tensors:
        count += prod(shape) * getattr(dtype, "itemsize", 0)
    if "scatter" in note.method:  # its note has the share of one rank
        *_, ranks = group
        count *= len(ranks)
    return count


def _bytes_of_entry(entry: dict[str, Any]) -> int:
    """The bytes of the inputs of a collective in torch's flight recorder."""
    count = 0
    for size, name in zip(entry["input_sizes"], entry["input_dtypes"], strict=False):
        count += prod(size) * getattr(torch, f"{name}Tensor").dtype.itemsize
    return count


def ended(call: RecordedCall, waited_since: float = 0) -> None:
    """Record that a remote call has ended, for its rank.

    Args:
        waited_since: when the wait for it began, in ns; 0 if nobody waited.
    """
    call.end = call.end or time_ns()
    if not waited_since:
        return
    if call.blocking:
        call.posted = time_ns()
    else:
        call.waits.append((waited_since, time_ns()))


def begin_recording() -> None:
    """Begin to record.

    Runs on: a rank, on its main thread.

    Raises:
        RuntimeError: a profiler runs on this rank already.
    """
    if is_profiling():
        raise RuntimeError("a profiler is already running there")
    profiler = profile(use_kineto=True)
    profiler.__enter__()
    PLUGINS.tracer = Recording(profiler)


def end_recording() -> Recorded:
    """End the recording and return what was recorded.

    Runs on: a rank, on the thread that started it.

    Raises:
        RuntimeError: nothing was recorded, and why.
    """
    recording = PLUGINS.tracer
    PLUGINS.tracer = None
    if not isinstance(recording, Recording):
        raise RuntimeError("its process ended, and another took its place")
    if not is_profiling():
        raise RuntimeError("the code there used a profiler of its own, which ended the trace's")
    recording.profiler.__exit__(None, None, None)
    rows = _torch_rows(recording.profiler)
    calls = recording.calls_by_python()
    made = [row for row in rows if row.name.startswith("c10d::")]
    by_python = [call for call in calls if not call.elsewhere]
    if len(made) > len(by_python):  # C++ has made the others
        calls = [*calls, *recording.calls_by_cpp(calls)]
    return Recorded(calls, rows)


def _torch_rows(profiler: profile) -> list[TorchRow]:
    """What the profiler has timed."""
    rows = []
    main = threading.get_native_id()
    results = profiler.kineto_results
    events = () if results is None else results.events()
    for event in events:
        thread = event.device_resource_id()
        if thread == main:
            thread = 0
        row = TorchRow(
            sys.intern(event.name()),  # a name is sent once
            event.is_user_annotation(),
            thread,
            event.start_ns(),
            event.end_ns(),
            event.sequence_nr(),
        )
        rows.append(row)
    return rows


def _member(group: GroupKey, number: int | None) -> int | None:
    """The rank in the world of a member of a group, by its number; None if there is none."""
    *_, ranks = group
    if number is None or number not in range(len(ranks)):
        return None
    return ranks[number]
