"""What a rank communicates about: each call of a process group is noted as it begins, and each wait for one.

Runs on every rank. `install` puts a thin layer under torch.distributed's functions, on the methods of torch's
ProcessGroup and Work, where every call that Python makes passes with its arguments complete. A note holds plain
values, never a tensor. The sentinel reads the notes from its own thread while the main thread is blocked, and checked
mode (agreement on each call before data moves) hooks in here. What C++ sends by itself, such as DDP's buckets, does not
pass here.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from distlab.source import is_learners

C10D = dist.distributed_c10d.__name__
FREED_SECONDS = 0.05  # how often a wait that only Python can end looks whether it was ended
REMEMBERED = 32  # calls of each kind and group that are remembered

# methods of ProcessGroup by what they are, with the public function's name where it cannot be read from the stack
POINT_TO_POINT = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
BLOCKING = ("send", "send_object_list")  # functions that wait for what they send
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "_allgather_base": "all_gather_single",
    "all_gather_single": "all_gather_single",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_single": "reduce_scatter_single",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
}
ROOTED = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}
REDUCING = {
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
}
OUTPUT_FIRST = {
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "scatter",
}  # their result is compared

_learners = functools.cache(is_learners)


class Note:
    """One call of a process group.

    Attributes:
        sequence: its number among the collectives of its group, or among the messages of its group, direction, peer
            and tag; from 1. frame_lines: the learner's lines as (file, number, function), innermost first.
        own_limit: whether it ends by itself before the group's timeout. done: whether it was waited for, to its end.
        is_async: whether a collective's caller waits for it later.
    """

    __slots__ = (
        "__weakref__",
        "args",
        "began",
        "done",
        "frame_lines",
        "group",
        "is_async",
        "method",
        "op",
        "own_limit",
        "peer",
        "sequence",
        "tag",
        "tensors",
    )

    def __init__(self, method: str, group: str, args: tuple, kwargs: dict[str, Any]):
        self.method, self.group, self.began = method, group, time.monotonic()
        self.peer, self.tag, self.sequence, self.args = -1, 0, 0, ()
        self.op, self.frame_lines = _place(sys._getframe(2))
        given = (*args, *kwargs.values())
        options = kwargs.get("opts", given[-1] if given else None)  # of a message: its tag, which has no timeout
        limit = getattr(options, "timeout", None)
        if method == "monitored_barrier":
            limit = kwargs.get("timeout", args[0] if args else None)
        usual = dist.distributed_c10d.default_pg_timeout
        self.own_limit = limit is not None and 0 < limit.total_seconds() < usual.total_seconds()
        self.done, self.is_async = False, getattr(options, "asyncOp", False)
        if method in POINT_TO_POINT:
            self.tensors = [_kind(given[0][0])]
            place = 1 if method == "recv_anysource" else 2
            self.peer = given[1] if place == 2 else -1
            self.tag = given[place] if len(given) > place else 0
        else:
            self.tensors = _kinds(method, given)
            self.args = (options, _splits(method, given))


class Notes:
    """All that one rank remembers of its calls; one object a process, `NOTES`."""

    def __init__(self) -> None:
        self.now: dict[int, Note] = {}  # by thread: the call that it waits in
        self.collectives: dict[str, deque[Note]] = {}
        self.counts: dict[str, int] = {}  # collectives by group
        # messages by (is a send, group, peer, tag), the newest kind last, and sends whose Work was dropped undone
        self.traffic: dict[tuple[bool, str, int, int], int] = {}
        self.dropped: dict[tuple[bool, str, int, int], int] = {}
        self.total = 0  # of everything that is noted
        self.freed = 0  # how often the sentinel has freed this rank
        self.works: weakref.WeakKeyDictionary[Any, Note] = weakref.WeakKeyDictionary()
        self.checker: Any = None  # checked.Checker while a cell is checked
        self.tracer: Any = None  # tracing.Recording while a trace is recorded

    def forget(self) -> None:
        """Forget every call; the group that they were made in is gone."""
        self.collectives.clear()
        self.counts.clear()
        self.traffic.clear()
        self.dropped = {}  # a new one: what is dropped from now on of the old group does not count
        self.works.clear()

    def add(self, note: Note) -> None:
        self.total += 1
        if note.method in POINT_TO_POINT:
            self.traffic[kind(note)] = note.sequence = self.traffic.pop(kind(note), 0) + 1
            return
        self.counts[note.group] = note.sequence = self.counts.get(note.group, 0) + 1
        self.collectives.setdefault(note.group, deque(maxlen=REMEMBERED)).append(note)

    def take_back(self, note: Note) -> None:
        """Forget a call that was refused before it began."""
        self.total += 1
        if note.method in POINT_TO_POINT and kind(note) in self.traffic:
            self.traffic[kind(note)] -= 1
        elif note in self.collectives.get(note.group, ()):
            self.collectives[note.group].remove(note)
            self.counts[note.group] -= 1


def kind(note: Note) -> tuple[bool, str, int, int]:
    """What messages are counted by: whether it is a send, its group, peer and tag."""
    return note.method == "send", note.group, note.peer, note.tag


NOTES = Notes()


def install() -> None:
    """Put the layer in place; a second time does nothing.

    Runs on: every rank, on its main thread, before the group is built.
    """
    group, work = dist.ProcessGroup, dist.Work
    if getattr(work.wait, "__module__", "") == __name__:
        return
    for name in (*POINT_TO_POINT, *COLLECTIVES):
        if hasattr(group, name):
            setattr(group, name, _noting(name, getattr(group, name)))
    work.wait = _waiting(work.wait)
    work.get_future = _derived(work.get_future)
    torch.Future.wait = _waiting(torch.Future.wait)
    torch.Future.then = _derived(torch.Future.then)


def _noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with a note of each call; `ProcessGroup.send` and the rest return a Work that remembers its note."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        note = Note(name, self.group_name, args, kwargs)
        if NOTES.tracer is None:
            return noted(note, self, *args, **kwargs)
        return NOTES.tracer.call(note, args, lambda: noted(note, self, *args, **kwargs))

    def noted(note: Note, self: Any, *args: Any, **kwargs: Any) -> Any:
        NOTES.add(note)
        thread = threading.get_ident()
        outer = NOTES.now.get(thread)
        NOTES.now[thread] = note
        try:
            if NOTES.checker is None:
                work = original(self, *args, **kwargs)
            else:
                work = NOTES.checker.call(note, lambda: original(self, *args, **kwargs))
        except Exception:
            if name != "monitored_barrier":  # the only one that has waited when it raises
                NOTES.take_back(note)
            raise
        finally:
            _restore(thread, outer)
        if work is not None and name != "monitored_barrier":
            NOTES.works[work] = note
            if name == "send" and note.op not in BLOCKING:
                weakref.finalize(work, _drop, note, NOTES.dropped).atexit = False
        return work

    call.__module__ = __name__
    return call


def _drop(note: Note, dropped: dict[tuple[bool, str, int, int], int]) -> None:
    """Count a send whose Work is gone: gloo forgets the message, unless its recv was there before."""
    if not note.done:
        dropped[kind(note)] = dropped.get(kind(note), 0) + 1


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work.wait or Future.wait, which says meanwhile what is waited for."""

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        note = NOTES.works.get(self)
        if note is None:
            return original(self, *args, **kwargs)
        if args or kwargs:
            note.own_limit = True
        with waiting_for(note):
            make = functools.partial(original, self, *args, **kwargs)
            if note.method == "recv_anysource":
                make = functools.partial(_wait_elsewhere, make)
            outcome = make() if NOTES.tracer is None else NOTES.tracer.wait(note, self, make)
        note.done = True
        return outcome

    wait.__module__ = __name__
    return wait


def _wait_elsewhere(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wait on another thread, so that the sentinel can free this one.

    A recv from any source belongs to no connection: gloo does not end it when its sockets are shut down. The thread
    that is left behind ends at the group's timeout.
    """
    outcome: list[Any] = []
    done, freed = threading.Event(), NOTES.freed

    def work() -> None:
        try:
            outcome.append(original(*args, **kwargs))
        except Exception as error:
            outcome.append(error)
        done.set()

    threading.Thread(target=work, name="distlab-any-source", daemon=True).start()
    while not done.wait(FREED_SECONDS):
        if NOTES.freed != freed:
            raise RuntimeError("Connection closed: the wait for a message from any rank was ended.")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


class waiting_for:
    """While it is entered, this thread waits for the call of the note."""

    __slots__ = ("note", "outer", "thread")

    def __init__(self, note: Note):
        self.note = note

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        self.outer = NOTES.now.get(self.thread)
        NOTES.now[self.thread] = self.note
        NOTES.total += 1

    def __exit__(self, *_: Any) -> None:
        _restore(self.thread, self.outer)


def _restore(thread: int, outer: Note | None) -> None:
    NOTES.total += 1
    if outer is None:
        NOTES.now.pop(thread, None)
    else:
        NOTES.now[thread] = outer


def _derived(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work.get_future or Future.then, whose result remembers the note too."""

    @functools.wraps(original)
    def derive(self: Any, *args: Any) -> Any:
        future = original(self, *args)
        if self in NOTES.works:
            NOTES.works[future] = NOTES.works[self]
        return future

    return derive


def _place(frame: FrameType | None) -> tuple[str, list[tuple[str, int, str]]]:
    """The outermost function of torch.distributed on the stack, and the learner's lines that led to it."""
    op, lines = "", []
    while frame is not None:
        if frame.f_globals.get("__name__") == C10D and not lines:
            op = frame.f_code.co_name
        elif _learners(frame.f_code.co_filename):
            lines.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        elif lines:
            break
        frame = frame.f_back
    return op, lines


def _kind(tensor: Any) -> tuple[Any, tuple[int, ...]]:
    """Type and shape; of what is no tensor, which torch refuses next, the type alone."""
    return getattr(tensor, "dtype", type(tensor).__name__), tuple(getattr(tensor, "shape", ()))


def _kinds(method: str, args: tuple) -> list[tuple[Any, tuple[int, ...]]]:
    """Type and shape of the tensors that all ranks must agree on: the result's where it is the same everywhere."""
    if method in ("barrier", "monitored_barrier"):
        return []
    if method == "alltoall":
        return [_kind(tensor) for tensor in args[1]]
    tensors = args[0] if method in OUTPUT_FIRST or len(args) < 3 else args[1]
    while isinstance(tensors, (list, tuple)) and tensors and isinstance(tensors[0], (list, tuple)):
        tensors = tensors[0]
    return [_kind(tensor) for tensor in (tensors if isinstance(tensors, (list, tuple)) else [tensors])]


def _splits(method: str, args: tuple) -> tuple[list[int] | int, list[int] | int] | None:
    """How many elements this rank sends to and receives from each rank, for all_to_all; None otherwise.

    The whole where it is split evenly.
    """
    if method == "alltoall":
        return [tensor.numel() for tensor in args[1]], [tensor.numel() for tensor in args[0]]
    if method in ("alltoall_base", "all_to_all_single"):
        output, given = args[0], args[1]
        return _split(given, args[3]), _split(output, args[2])
    return None


def _split(tensor: torch.Tensor, sizes: list[int]) -> list[int] | int:
    row = tensor[0].numel() if tensor.dim() > 0 and tensor.shape[0] else 1
    return [size * row for size in sizes or ()] or tensor.numel()
