"""What a rank remembers of its calls of process groups: a `Note` for each, which the sentinel reads while it waits.

Runs on every rank. calls.py makes the notes; state.py, deadlock reasoning and checked mode read them. A note holds
plain values, never a tensor.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from distlab.source import is_learners

C10D = dist.distributed_c10d.__name__
_C10D_FILE = dist.distributed_c10d.__file__
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
        waits_shorter: whether its caller waits with a limit. done: whether it was waited for, to its end.
        args: of a collective, torch's options and what all_to_all sends and receives; they are read when asked for,
            because a call should not wait for it.
    """

    __slots__ = (
        "__weakref__",
        "args",
        "began",
        "done",
        "frame_lines",
        "group",
        "method",
        "op",
        "peer",
        "sequence",
        "tag",
        "tensors",
        "waits_shorter",
    )

    def __init__(self, method: str, group: str, args: tuple, kwargs: dict[str, Any]):
        self.method, self.group, self.began = method, group, time.monotonic()
        self.peer, self.tag, self.sequence, self.args = -1, 0, 0, ()
        self.op, self.frame_lines = _place(sys._getframe(2))
        self.done = self.waits_shorter = False
        given = (*args, *kwargs.values()) if kwargs else args
        if method in POINT_TO_POINT:
            self._message(given)
        else:
            self.tensors = _kinds(method, given)
            self.args = (_options(method, given, kwargs), _splits(method, given))

    def _message(self, given: tuple) -> None:
        self.tensors = [_kind(given[0][0])]
        place = 1 if self.method == "recv_anysource" else 2
        self.peer = given[1] if place == 2 else -1
        self.tag = given[place] if len(given) > place else 0

    @property
    def own_limit(self) -> bool:
        """Whether it ends by itself before the group's timeout."""
        limit = None
        if self.args:
            options, _ = self.args
            limit = options if self.method == "monitored_barrier" else getattr(options, "timeout", None)
        short = limit is not None and timedelta(0) < limit < dist.distributed_c10d.default_pg_timeout
        return self.waits_shorter or short

    @property
    def root(self) -> int:
        """The number in the group of the rank that a collective goes out from, or ends at."""
        options = self.args[0]
        return getattr(options, "rootRank", options if isinstance(options, int) else 0)

    @property
    def is_async(self) -> bool:
        """Whether a collective's caller waits for it later."""
        return bool(self.args) and getattr(self.args[0], "asyncOp", False)


class Notes:
    """All that one rank remembers of its calls; one object a process, `NOTES`."""

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1  # of the cluster; the environment, which says the same, is the learner's
        self.now: dict[int, Note] = {}  # by thread: the call that it waits in
        self.collectives: defaultdict[str, deque[Note]] = defaultdict(functools.partial(deque, maxlen=REMEMBERED))
        self.counts: dict[str, int] = {}  # collectives by group
        # messages by (is a send, group, peer, tag), the newest kind last, and sends whose Work was dropped undone
        self.traffic: dict[tuple[bool, str, int, int], int] = {}
        self.dropped: dict[tuple[bool, str, int, int], int] = {}
        self.total = 0  # of everything that is noted
        self.loops: set[int] = set()  # gloo's threads that read from sockets, by the system's numbers
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
        self.collectives[note.group].append(note)

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
        self.ties[id(work)] = tie = Tie(work, _untie)
        tie.key, tie.notes, tie.note, tie.dropped = id(work), self, note, self.dropped if is_message else None

    def of(self, work: Any) -> Note | None:
        """The note of a Work or Future."""
        tie = self.ties.get(id(work))
        return tie.note if tie is not None else None


class Tie(weakref.ref):
    """A weak reference from a Work, or a Future of one, to the note of its call; `Notes.tie` fills it."""

    __slots__ = ("dropped", "key", "note", "notes")


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
        code = frame.f_code
        if is_learners(code.co_filename):
            lines.append((code.co_filename, frame.f_lineno, code.co_name))
        elif lines:
            break
        elif code.co_filename == _C10D_FILE:
            op = code.co_name
        frame = frame.f_back
    return op, lines


def _kind(tensor: Any) -> tuple[Any, tuple[int, ...]]:
    """Type and shape; of what is no tensor, which torch refuses next, the type alone."""
    if isinstance(tensor, torch.Tensor):
        return tensor.dtype, tensor.shape
    return type(tensor).__name__, ()


def _kinds(method: str, args: tuple) -> list[tuple[Any, tuple[int, ...]]]:
    """Type and shape of the tensors that all ranks must agree on: the result's where it is the same everywhere."""
    if method in ("barrier", "monitored_barrier"):
        return []
    if method == "alltoall":
        return [_kind(tensor) for tensor in args[1]]
    tensors = args[0] if len(args) < 3 or method in OUTPUT_FIRST else args[1]
    if not isinstance(tensors, (list, tuple)):
        return [_kind(tensors)]
    while tensors and isinstance(tensors[0], (list, tuple)):
        tensors = tensors[0]
    return [_kind(tensor) for tensor in tensors]


def _options(method: str, given: tuple, kwargs: dict[str, Any]) -> Any:
    """torch's options of a collective; of monitored_barrier, which has none, its time limit."""
    if method == "monitored_barrier":
        return kwargs.get("timeout", given[0] if given else None)
    return kwargs.get("opts", given[-1] if given else None)


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
