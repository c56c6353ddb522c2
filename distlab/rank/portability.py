"""What a program calls on this rank, noted for the question whether it would work on NCCL.

Runs on a rank while a cell is checked: hooks.py tells it of each call of a process group, and
entry.py begins and ends it. diagnosis/portability.py judges what was seen.

What C++ calls by itself, such as DDP's buckets, is not seen, and it works on NCCL.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from distlab.compat import torch as private
from distlab.rank.log import LOG, MOST_UNWAITED, Note
from distlab.rank.membership import members_of
from distlab.rank.methods import IMMEDIATE
from distlab.rank.plugins import PLUGINS
from distlab.rank.records import name_of_reduce_op
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.messages import COLLECTIVE, MESSAGE
from distlab.wire.portability import Seen, SeenCall, SeenCollective, SeenMessage
from distlab.wire.recorded import GroupKey
from distlab.wire.rendezvous import this_machine
from distlab.wire.source import Line, line_of, runs_learners_code

# Calls of each kind that are remembered in their order. Where there are more, nothing is said of
# orders.
MOST_IN_ORDER = 20_000
MOST_TENSORS = 64  # of one call that are looked at
MOST_THREADS = 8  # that are told apart
BATCH = "batch_isend_irecv"
LOGS_CALLS = "torch.distributed.c10d_logger"  # the module of torch that wraps its functions


def begin_watching() -> None:
    """Note each call from now on. Runs on: a rank, on its main thread."""
    PLUGINS.watcher = Watcher()


def end_watching() -> Seen | None:
    """What was seen since the beginning; None if nothing was watched. Runs on: a rank."""
    watcher = PLUGINS.watcher
    PLUGINS.watcher = None
    return watcher.end() if isinstance(watcher, Watcher) else None


class Watcher:
    """Notes each call of a process group, and forgets the tensors at once."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._lock = threading.Lock()  # two threads may call at once
        self._calls: Counter[SeenCall] = Counter()
        self._collectives: list[SeenCollective] = []
        self._messages: list[SeenMessage] = []
        self._numbers: Counter[GroupKey] = Counter()
        self._used: set[GroupKey] = set()  # groups in which something was called
        self._threads: dict[int, int] = {self._main: 0}
        self._immediate: dict[Note, SeenCall] = {}
        self._lines: dict[tuple[str, int, str], Line] = {}
        self._nccl_groups: list[GroupKey] = []
        self._batch = 0
        self._left_in_batch: defaultdict[int, int] = defaultdict(int)  # by thread
        self._is_whole = True

    def see(self, note: Note, group: Any, args: tuple[Any, ...], caller: FrameType) -> None:
        """Note a call that is about to begin.

        Args:
            note: the call's.
            group: its process group.
            args: those of the method.
            caller: the frame that called the method.
        """
        with self._lock:
            key: GroupKey = (note.group, THIS_RANK.generation, members_of(note.group))
            if note.group in LOG.nccl_groups and key not in self._nccl_groups:
                self._nccl_groups.append(key)
            line = self._line_of(note)
            call = self._call_of(note, group, key, args, line, caller)
            self._calls[call] += 1
            self._used.add(key)
            if call.op in IMMEDIATE or note.is_async:
                self._remember(note, call)
            if note.kind == COLLECTIVE:
                self._see_collective(key, line)
            elif note.kind == MESSAGE and note.method != "recv_anysource":
                self._see_message(note, key, line, caller)

    def _call_of(
        self,
        note: Note,
        group: Any,
        key: GroupKey,
        args: tuple[Any, ...],
        line: Line | None,
        caller: FrameType,
    ) -> SeenCall:
        """What is remembered of a call."""
        tensors = list(_tensors_in(args))[:MOST_TENSORS]
        next_number = min(len(self._threads), MOST_THREADS)
        number = self._threads.setdefault(threading.get_ident(), next_number)
        has_device = getattr(note.options, "device_ids", None) or private.bound_device(group)
        return SeenCall(
            op=note.op or note.method,
            method=note.method,
            group=key,
            line=line,
            file="" if line is None else line.file,
            is_direct=_is_direct(caller),
            devices=_each_once(str(tensor.device) for tensor in tensors),
            dtypes=_each_once(str(tensor.dtype).removeprefix("torch.") for tensor in tensors),
            is_sparse=any(tensor.layout != torch.strided for tensor in tensors),
            reduce_op=name_of_reduce_op(note),
            names_device=bool(has_device),
            is_first=key not in self._used and not _was_used(note.group),
            thread=number,
        )

    def _remember(self, note: Note, call: SeenCall) -> None:
        """Remember a call that returns at once, for as long as it may be waited for."""
        if len(self._immediate) >= 2 * MOST_UNWAITED:
            unwaited = {one: call for one, call in self._immediate.items() if one in LOG.unwaited}
            self._immediate = unwaited
        self._immediate[note] = call

    def _see_collective(self, key: GroupKey, line: Line | None) -> None:
        self._numbers[key] += 1
        if len(self._collectives) >= MOST_IN_ORDER:
            self._is_whole = False
            return
        self._collectives.append(SeenCollective(key, self._numbers[key], line))

    def _see_message(self, note: Note, key: GroupKey, line: Line | None, caller: FrameType) -> None:
        *_, ranks = key
        if note.peer not in range(len(ranks)):
            return  # torch will refuse it
        if len(self._messages) >= MOST_IN_ORDER:
            self._is_whole = False
            return
        batch = self._batch_of(note, caller)
        is_send = note.method == "send"
        self._messages.append(SeenMessage(is_send, key, ranks[note.peer], note.tag, batch, line))

    def _batch_of(self, note: Note, caller: FrameType) -> int:
        """The number of the batch that a message belongs to; 0 for none."""
        if note.op != BATCH:
            return 0
        thread = threading.get_ident()
        if self._left_in_batch[thread] == 0:
            self._batch += 1
            self._left_in_batch[thread] = _length_of_batch(caller)
        self._left_in_batch[thread] -= 1
        return self._batch

    def _line_of(self, note: Note) -> Line | None:
        """The program's line that led to a call; its text is read once."""
        if not note.lines:
            return None
        place = note.lines[0]
        if place not in self._lines:
            self._lines[place] = line_of(*place)
        return self._lines[place]

    def end(self) -> Seen:
        """All that was seen, with the calls that nobody has waited for."""
        for note, call in self._immediate.items():
            if not note.done and not note.is_followed and note in LOG.unwaited:
                self._calls[call] -= 1
                self._calls[replace(call, is_left=True)] += 1
        devices = {device for call in self._calls for device in call.devices}
        return Seen(
            calls={call: count for call, count in self._calls.items() if count > 0},
            collectives=self._collectives if len(self._numbers) > 1 else [],
            messages=self._messages,
            nccl_groups=tuple(self._nccl_groups),
            has_gpu=torch.cuda.is_available(),
            gpus={device: _gpu_of(device) for device in devices if device.startswith("cuda")},
            host=this_machine()[0],
            is_whole=self._is_whole,
        )


def _gpu_of(device: str) -> str:
    """What tells a GPU from all others; CUDA_VISIBLE_DEVICES may give each rank another cuda:0."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    return str(uuid) or f"{device} of {os.environ.get('CUDA_VISIBLE_DEVICES', '')}"


def _was_used(group: str) -> bool:
    """Whether something was called in a group before the cell."""
    if LOG.collectives.get(group) or group in LOG.shared_with_cpp:
        return True
    return any(kind.group == group for kind in LOG.messages.begun)


def _tensors_in(args: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among some arguments, in lists and lists of lists, too."""
    for one in args:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors_in(one)


def _each_once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(words)))


def _is_direct(frame: FrameType | None) -> bool:
    """Whether the program called torch.distributed itself, and no library has done it for it."""
    while frame is not None and _is_of_torchs_functions(frame):
        frame = frame.f_back
    return frame is not None and runs_learners_code(frame)


def _is_of_torchs_functions(frame: FrameType) -> bool:
    """Whether a frame is one of torch.distributed's own functions."""
    return frame.f_globals.get("__name__") in (private.C10D_MODULE, LOGS_CALLS)


def _length_of_batch(frame: FrameType | None) -> int:
    """How many messages the batch has that is being begun; 1 if that cannot be seen."""
    while frame is not None and frame.f_code.co_name != BATCH:
        frame = frame.f_back
    operations = () if frame is None else frame.f_locals.get("p2p_op_list", ())
    return max(1, len(operations))
