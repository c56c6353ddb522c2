"""What a rank remembers of its calls of process groups: a `Note` for each, which the watchdog reads while it waits.

Runs on every rank. call_hooks.py makes the notes; status.py, deadlock reasoning and checked mode read them. A note
holds plain values, never a tensor.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from distlab.compat.torch import ALL_GATHER_BASE, REDUCE_SCATTER_BASE, default_timeout
from distlab.text import rank_list
from distlab.wire import messages
from distlab.wire.messages import REMOTE, CallRecord
from distlab.wire.source import is_shown, line_of

C10D = dist.distributed_c10d.__name__
_C10D_FILE = dist.distributed_c10d.__file__
REMEMBERED = 32  # calls of each kind and group that are remembered

# methods of ProcessGroup by what they are; torch 2.13 has given some of them new names
POINT_TO_POINT = ("send", "recv", "recv_anysource")
_REDUCING = ("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", REDUCE_SCATTER_BASE)
_GATHERING = ("allgather", "allgather_coalesced", ALL_GATHER_BASE, "gather")
_EXCHANGING = ("broadcast", "scatter", "alltoall", "alltoall_base", "barrier", "monitored_barrier")
_NEW = ("all_gather_single", "reduce_scatter_single", "all_to_all_single")
COLLECTIVES = (*_REDUCING, *_GATHERING, *_EXCHANGING, *_NEW)
MEETINGS = ("init_rpc", "shutdown")  # functions of RPC that wait for every worker to call them
CPP = re.compile(r"\n\s*\n?At:\n.*|\nException raised from.*| \(this error originated at [^)]*\)", re.DOTALL)
ROOTED = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}


class Note:
    """One call of a process group.

    Attributes:
        sequence: its number among the collectives of its group, or among the messages of its group, direction, peer
            and tag; from 1. frame_lines: the learner's lines as (file, number, function), innermost first.
        waits_shorter: whether its caller waits with a limit. done: whether it was waited for, to its end.
        args: of a collective, torch's options and what all_to_all sends and receives; they are read when asked for,
            because a call should not wait for it.
    """

    def __init__(self, method: str, group: str, args: tuple, kwargs: dict[str, Any]):
        self.method, self.group = method, group
        self.peer, self.tag, self.sequence, self.args = -1, 0, 0, (None, None)
        self.op, self.frame_lines = place_of(sys._getframe(2))
        self.done = self.waits_shorter = False
        given = (*args, *kwargs.values()) if kwargs else args
        if method in POINT_TO_POINT:
            self.tensors = [_kind(given[0][0])]
            ends = (-1, *given[1:]) if method == "recv_anysource" else given[1:]
            self.peer, self.tag = (*ends, 0)[:2]  # the tag may be left out
        else:
            self.tensors = _kinds(method, given)
            self.args = (kwargs.get("opts", given[-1] if given else None), _splits(method, given))

    @property
    def own_limit(self) -> bool:
        """Whether it ends by itself before the group's timeout, or says itself who is missing."""
        limit = getattr(self.args[0], "timeout", timedelta(0))
        return self.waits_shorter or timedelta(0) < limit < default_timeout() or self.method == "monitored_barrier"

    @property
    def is_async(self) -> bool:
        """Whether a collective returns at once."""
        return getattr(self.args[0], "asyncOp", False)

    @property
    def root(self) -> int:
        """The number in the group of the rank that a collective goes out from, or ends at."""
        options = self.args[0]
        return getattr(options, "rootRank", options if isinstance(options, int) else 0)


class RemoteNote:
    """One remote call, or several that are waited for together, or a meeting of all workers.

    Attributes:
        op: what the learner called. function: its name on the callees, the ranks that it waits for.
        ends_by_itself: whether the learner gave it a limit.
    """

    method = REMOTE

    def __init__(self, op: str, function: str, callees: Iterable[int], ends_by_itself: bool = False):
        self.op, self.function, self.callees = op, function, tuple(callees)
        _, self.frame_lines = place_of(sys._getframe(2))
        self.ends_by_itself, self.waits_shorter, self.done = ends_by_itself, False, False

    def record(self) -> CallRecord:
        """It as another process can read it."""
        lines = tuple(line_of(*line) for line in reversed(self.frame_lines))
        kind = messages.OTHER if self.op in MEETINGS else messages.REMOTE
        limit = self.ends_by_itself or self.waits_shorter
        return CallRecord(self.op, kind, self.callees, limit, function=self.function, lines=lines)

    def readable(self, error: RuntimeError) -> RuntimeError:
        """The error of this call without C++'s stack, and with what to do about it."""
        message = CPP.sub("", str(error)).strip()
        inner = re.match(r"RuntimeError: (.*)", message, re.DOTALL)
        where = rank_list(self.callees)
        if late := re.search(r"ran for more than set timeout \((\d+) ms\)", message):
            message = f"RPC timeout: {self.function or self.op}(...) on {where} did not answer within {late[1]} ms."
        if re.match(r"\w+: [^\n]*(cannot|can't) pickle", message, re.IGNORECASE):
            message = f"The result of {self.function} on {where} cannot be sent ({message}). Return plain values or "
            message += "tensors, or leave it there with rpc.remote, and pass its RRef around."
        told = RuntimeError(inner[1] if inner else message)
        told.is_remote = bool(inner)
        return told


class Notes:
    """All that one rank remembers of its calls; one object a process, `NOTES`."""

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1  # of the cluster; the environment, which says the same, is the learner's
        self.total = 0  # of everything that is noted
        self.freed = 0  # how often the watchdog has freed this rank
        self.checker: Any = None  # argument_checks.Checker while a cell is checked
        self.tracer: Any = None  # recording.Recording while a trace is recorded
        self.store_ports: set[int] = set()  # of the learner's own stores
        self.forget()

    def forget(self) -> None:
        """Forget every call; the group that they were made in is gone."""
        if self.tracer is not None:
            self.tracer.forget_groups()
        # by thread: the call that it waits in; an interrupt that hit `waiting_for` itself has left its call there
        self.now: dict[int, Note | None] = {}
        self.closed = False  # whether the watchdog frees this rank: it begins no more calls
        self.collectives: defaultdict[str, deque[Note]] = defaultdict(functools.partial(deque, maxlen=REMEMBERED))
        # messages by (is a send, group, peer, tag), the newest kind last, and sends whose Work was dropped undone
        self.traffic: dict[tuple[bool, str, int, int], int] = {}
        self.dropped: dict[tuple[bool, str, int, int], int] = {}
        self.ties: weakref.WeakKeyDictionary[Any, Note] = weakref.WeakKeyDictionary()  # by Work or Future
        self.results: dict[int, Note] = {}  # by storage: of functional collectives that were not waited for yet

    def forget_group(self, name: str) -> None:
        """Forget the calls in a group that is gone, and whose name another one gets."""
        self.collectives.pop(name, None)
        for counts in (self.traffic, self.dropped):
            for key in [key for key in counts if key[1] == name]:
                del counts[key]

    def add(self, note: Note) -> None:
        if self.closed:
            raise RuntimeError("Connection closed: this rank was freed from a call of its group before.")
        self.total += 1
        if note.method in POINT_TO_POINT:
            self.traffic[kind(note)] = note.sequence = self.traffic.pop(kind(note), 0) + 1
            return
        before = self.collectives[note.group]
        note.sequence = before[-1].sequence + 1 if before else 1
        before.append(note)

    def take_back(self, note: Note) -> None:
        """Forget a call that was refused before it began."""
        if note.method in POINT_TO_POINT and kind(note) in self.traffic:
            self.traffic[kind(note)] -= 1
        elif note in self.collectives[note.group]:
            self.collectives[note.group].remove(note)

    def came_from(self, note: Note, source: int) -> None:
        """Count a message that was received from anybody as one of its sender, a rank of the group."""
        key = (False, note.group, source, note.tag)
        self.traffic[kind(note)] -= 1
        self.traffic[key] = self.traffic.pop(key, 0) + 1

    def tie(self, work: Any, note: Note, is_message: bool = False) -> None:
        """Remember the note of a Work or Future for as long as that lives; a sent message counts if it dies undone."""
        self.ties[work] = note
        if is_message:
            weakref.finalize(work, _untie, note, self.dropped).atexit = False


def _untie(note: Note, dropped: dict[tuple[bool, str, int, int], int]) -> None:
    """The Work of a send is gone. gloo forgets a message that nobody waited for, unless its recv was there before."""
    if not note.done:
        dropped[kind(note)] = dropped.get(kind(note), 0) + 1


def kind(note: Note) -> tuple[bool, str, int, int]:
    """What messages are counted by: whether it is a send, its group, peer and tag."""
    return note.method == "send", note.group, note.peer, note.tag


NOTES = Notes()


class waiting_for:
    """While it is entered, this thread waits for the call of the note, and for what it waited for before afterwards."""

    def __init__(self, note: Note):
        self._note = note

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._outer = NOTES.now.get(self._thread)
        NOTES.now[self._thread] = self._note
        NOTES.total += 1

    def __exit__(self, *_: Any) -> None:
        NOTES.total += 1
        NOTES.now[self._thread] = self._outer


def completed_by(call: Callable[[], Any], future: Any) -> Any:
    """The future, which a thread of its own completes by what `call` returns or raises."""

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, name="distlab-wait", daemon=True).start()
    return future


def place_of(frame: FrameType | None) -> tuple[str, list[tuple[str, int, str]]]:
    """The outermost function of torch.distributed on the stack, and the learner's lines that led to it."""
    op, lines = "", []
    while frame is not None:
        code = frame.f_code
        if is_shown(code.co_filename):
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
    tensors = args[0] if len(args) < 3 or "scatter" in method else args[1]  # of a scatter the result is compared
    if not isinstance(tensors, (list, tuple)):
        return [_kind(tensors)]
    return [_kind(tensor) for tensor in tensors]


def _splits(method: str, args: tuple) -> tuple[list[int] | int, list[int] | int] | None:
    """How many elements this rank sends to and receives from each rank, for all_to_all; None otherwise.

    The whole where it is split evenly.
    """
    if method == "alltoall":
        return [tensor.numel() for tensor in args[1]], [tensor.numel() for tensor in args[0]]
    if method in ("alltoall_base", "all_to_all_single"):
        return _split(args[1], args[3]), _split(args[0], args[2])
    return None


def _split(tensor: torch.Tensor, sizes: list[int]) -> list[int] | int:
    row = tensor[0].numel() if tensor.dim() > 0 and tensor.shape[0] else 1
    return [size * row for size in sizes or ()] or tensor.numel()
