"""What a rank remembers of its calls of process groups: a `Note` for each, which the sentinel reads while it waits.

Runs on every rank. calls.py makes the notes; state.py, deadlock reasoning and checked mode read them. A note holds
plain values, never a tensor.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from distlab.source import is_learners

C10D = dist.distributed_c10d.__name__
REMEMBERED = 32  # calls of each kind and group that are remembered

# methods of ProcessGroup by what they are, with the public function's name where it cannot be read from the stack
POINT_TO_POINT = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
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
        self.done = self.own_limit = self.is_async = False
        given = (*args, *kwargs.values()) if kwargs else args
        if method in POINT_TO_POINT:
            self._message(given)
        else:
            self._collective(given, kwargs)

    def _message(self, given: tuple) -> None:
        self.tensors = [_kind(given[0][0])]
        place = 1 if self.method == "recv_anysource" else 2
        self.peer = given[1] if place == 2 else -1
        self.tag = given[place] if len(given) > place else 0

    def _collective(self, given: tuple, kwargs: dict[str, Any]) -> None:
        options = kwargs.get("opts", given[-1] if given else None)
        limit = getattr(options, "timeout", None)
        if self.method == "monitored_barrier":
            limit = kwargs.get("timeout", given[0] if given else None)
        usual = dist.distributed_c10d.default_pg_timeout
        self.own_limit = limit is not None and 0 < limit.total_seconds() < usual.total_seconds()
        self.is_async = getattr(options, "asyncOp", False)
        self.tensors = _kinds(self.method, given)
        self.args = (options, _splits(self.method, given))


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
        self.ties: dict[int, Tie] = {}  # by the id of a Work or Future
        self.checker: Any = None  # checked.Checker while a cell is checked
        self.tracer: Any = None  # tracing.Recording while a trace is recorded

    def forget(self) -> None:
        """Forget every call; the group that they were made in is gone."""
        self.collectives.clear()
        self.counts.clear()
        self.traffic.clear()
        self.dropped = {}  # a new one: what is dropped from now on of the old group does not count
        self.ties.clear()

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

    def tie(self, work: Any, note: Note, is_message: bool = False) -> None:
        """Remember the note of a Work or Future for as long as that lives; a sent message counts if it dies undone."""
        self.ties[id(work)] = Tie(work, self, note, self.dropped if is_message else None)

    def of(self, work: Any) -> Note | None:
        """The note of a Work or Future."""
        tie = self.ties.get(id(work))
        return tie.note if tie is not None else None


class Tie(weakref.ref):
    """A weak reference from a Work, or a Future of one, to the note of its call."""

    __slots__ = ("dropped", "key", "note", "notes")

    def __new__(cls, work: Any, *_: Any) -> Tie:
        return super().__new__(cls, work, _untie)

    def __init__(self, work: Any, notes: Notes, note: Note, dropped: dict[tuple[bool, str, int, int], int] | None):
        super().__init__(work, _untie)
        self.key, self.notes, self.note, self.dropped = id(work), notes, note, dropped


def _untie(tie: Tie) -> None:
    """The Work is gone. gloo forgets a message that nobody waited for, unless its recv was there before."""
    if tie.notes.ties.get(tie.key) is tie:
        del tie.notes.ties[tie.key]
    if tie.dropped is not None and not tie.note.done:
        tie.dropped[kind(tie.note)] = tie.dropped.get(kind(tie.note), 0) + 1


def kind(note: Note) -> tuple[bool, str, int, int]:
    """What messages are counted by: whether it is a send, its group, peer and tag."""
    return note.method == "send", note.group, note.peer, note.tag


NOTES = Notes()


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
        restore(self.thread, self.outer)


def restore(thread: int, outer: Note | None) -> None:
    """The thread waits no longer, or again for what it waited for before."""
    NOTES.total += 1
    if outer is None:
        NOTES.now.pop(thread, None)
    else:
        NOTES.now[thread] = outer


def _place(frame: FrameType | None) -> tuple[str, list[tuple[str, int, str]]]:
    """The outermost function of torch.distributed on the stack, and the learner's lines that led to it."""
    op, lines = "", []
    while frame is not None:
        if frame.f_globals.get("__name__") == C10D and not lines:
            op = frame.f_code.co_name
        elif is_learners(frame.f_code.co_filename):
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
