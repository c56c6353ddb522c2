"""What this rank is doing, told from another thread than the one that does it: idle, computing, or in which call.

Runs on every rank, on the sentinel's thread, when the notebook asks. Everything is read from outside: the main
thread's Python frames, the notes of calls.py, and what the system knows of threads and sockets.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

import torch.distributed as dist

from distlab.notes import C10D, COLLECTIVES, NOTES, POINT_TO_POINT, REDUCING, REMEMBERED, ROOTED, Note
from distlab.source import is_learners, line_of

TORCH = "torch."
BACKWARD = "torch.autograd"
DDP, DDP_HELPERS = "torch.nn.parallel.distributed", "torch.distributed.utils"
GLOO_LOOP = "gloo_tcp_loop"  # gloo's name for its thread that reads from sockets
WAITING_FOR_WORK = (
    "concurrent.futures.thread",
    "multiprocessing.queues",
    "tqdm._monitor",
    "IPython.core.history",
    "zmq.utils.garbage",  # there from the first large value on that this rank has sent to the notebook
)
POLLING = ("distlab.mpi_work",)  # modules that wait by looking again and again
BUSY_IN_A_POOL = ("concurrent.futures.thread", "run")
BYTES_ACKED, BYTES_RECEIVED = 120, 128  # offsets in Linux's struct tcp_info


def frames(thread: int) -> Iterator[FrameType]:
    """The Python frames of a thread, innermost first."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def communication(thread: int) -> str:
    """The name of what the thread waits in when it is inside torch.distributed or a backward pass; "" otherwise."""
    note = NOTES.now.get(thread)
    if note is not None:
        return note.op or note.method
    found, innermost = "", ""
    for frame in frames(thread):
        module = frame.f_globals.get("__name__", "")
        innermost = innermost or module
        if module == C10D:
            found = frame.f_code.co_name
        elif module == DDP and innermost in (DDP, DDP_HELPERS):  # not in the model that it calls
            found = "DistributedDataParallel"
        elif module.startswith(BACKWARD) and not found:
            found = "backward"
        elif module.startswith("torch.distributed") and not found:
            found = module.rsplit(".", 1)[1]
        elif not module.startswith((TORCH, "distlab.")):
            break
    return found


def executing(frame: FrameType | None) -> bool:
    """Whether this frame, or one that it was called from, is code of a cell or of a call of the notebook's.

    What the engine does around that code, such as unpacking a message or sending a reply, does not count.
    """
    inner = None
    while frame is not None:
        if frame.f_code.co_name in ("run_code", "do_apply"):
            return inner is not None and inner.f_code.co_name.startswith("<")  # the code that exec runs
        frame, inner = frame.f_back, frame
    return False


def summary(main: int, ours: set[int], find_sockets: Callable[[], list[tuple[int, int]]]) -> dict[str, Any]:
    """What the main thread does, as plain values.

    Runs on: a rank, on the sentinel's thread.

    Args:
        main: identifier of the main thread. ours: system numbers of threads that are not the learner's and not gloo's.
        find_sockets: finds gloo's sockets as (descriptor, inode).

    Returns:
        doing ("idle", "computing", "communicating"), lines (the learner's, outermost first, as describe_failure has
        them), call (a described call, or one with only an op; None), seconds (in the call; None), counts and history
        (collectives by group), groups (how many were made), traffic (numbers of messages), mark (equal in two summaries
        when nothing happened between them), quiet (nothing is on its way and no thread computes) and rounds (how often
        gloo's own threads, which look every few milliseconds whether something came, have run).
    """
    note, op = NOTES.now.get(main), communication(main)
    first = next(frames(main), None)
    running = executing(first)
    here = next((frame for frame in frames(main) if frame.f_globals.get("__name__") not in POLLING), first)
    polls = here is not first
    call = None
    if running and note is not None:
        call = {**describe(note), "op": op}
    elif running and op:
        call = {"op": op, "kind": "other", **_what_is_known(main, op)}
    doing = "communicating" if call else "computing" if running else "idle"
    # one that computes moves; to ask more would take long: Python's lock is given back at every system call
    mine = [] if doing == "computing" else find_sockets()
    still = (
        doing != "computing"
        and _still(ours | ({_native_id(main)} if polls else set()))
        and not _under_way(mine)
        and not _other_threads(main, ours)
    )
    return {
        "doing": doing,
        "lines": _lines(main),
        "call": call,
        "seconds": time.monotonic() - note.began if note is not None and running else None,
        "counts": dict(NOTES.counts),
        "groups": dist.get_pg_count(),
        "history": [] if doing == "computing" else [describe(old, lines=False) for old in _collectives()],
        "traffic": _traffic(),
        "mark": [id(here), here.f_lasti if here else 0, NOTES.total, _bytes_moved(mine)],
        "quiet": still,
        "rounds": _rounds() if still else [],
    }


def _what_is_known(thread: int, op: str) -> dict[str, Any]:
    """Who takes part in a wait that no call of a group explains, and whether it may end by itself.

    All may but new_group, of which it is known how many have been begun, and what C++ sends for a model in training.
    """
    everyone = list(range(int(os.environ.get("WORLD_SIZE", "1"))))
    for frame in frames(thread) if op == "new_group" else ():
        if frame.f_code.co_name == op:
            ranks, limit = frame.f_locals.get("ranks"), frame.f_locals.get("timeout")
            members = everyone if ranks is None else sorted(ranks)
            # a group that only its members make is not counted
            count = 0 if frame.f_locals.get("use_local_synchronization") else dist.get_pg_count()
            return {"members": members, "own_limit": limit is not None, "sequence": count}
    in_training = op in ("backward", "DistributedDataParallel") and os.path.isdir("/proc/self/task")
    limits = [_members(name)[1] for name in list(dist.distributed_c10d._world.pg_names.values())]
    return {"members": everyone, "own_limit": not in_training or any(limits)}


def _collectives() -> Iterator[Note]:
    """The newest of every group; asynchronous ones let a rank be many ahead of the others."""
    for notes in list(NOTES.collectives.values()):
        yield from list(notes)


def _traffic() -> list[tuple[bool, str, int | None, int, int, int]]:
    """Numbers of messages as (is a send, group, peer's rank or None for any, tag, count, dropped), the newest kinds."""
    dropped, rows = dict(NOTES.dropped), []
    for key, count in list(NOTES.traffic.items())[-2 * REMEMBERED :]:
        is_send, group, peer, tag = key
        members, _ = _members(group)
        peer_rank = members[peer] if 0 <= peer < len(members) else None
        rows.append((is_send, group, peer_rank, tag, count, dropped.get(key, 0)))
    return rows


def variables() -> list[str]:
    """Names that the learner has defined on this rank, modules left out."""
    given = {"rank", "world_size", "mpi_rank", "mpi_size", "In", "Out", "exit", "quit", "open", "get_ipython"}
    return sorted(
        name
        for name, value in list(sys.modules["__main__"].__dict__.items())
        if not name.startswith("_") and name not in given and not isinstance(value, ModuleType)
    )


def describe(note: Note, lines: bool = True) -> dict[str, Any]:
    """A note as plain values that another process can read and compare, with the learner's `lines` or without."""
    members, own = _members(note.group)
    plain: dict[str, Any] = {
        "op": note.op or note.method,
        "kind": "message" if note.method in POINT_TO_POINT else "collective",
        "collective": COLLECTIVES.get(note.method, ""),
        "group": note.group,
        "members": members,
        "own_limit": note.own_limit or own,
        "sequence": note.sequence,
        "tensors": [[str(dtype).removeprefix("torch."), list(shape)] for dtype, shape in note.tensors],
        "place": [os.path.basename(note.frame_lines[0][0]), note.frame_lines[0][1]] if note.frame_lines else [],
        "lines": [line_of(*line) for line in reversed(note.frame_lines)] if lines else [],
    }
    if plain["kind"] == "message":
        plain["is_send"] = note.method == "send"
        plain["tag"] = note.tag
        plain["peer"] = members[note.peer] if 0 <= note.peer < len(members) else None
        return plain
    options, splits = note.args
    if note.method in ROOTED:
        plain["root"] = members[note.root] if 0 <= note.root < len(members) else note.root
    if note.method in REDUCING and hasattr(options, "reduceOp"):
        plain["reduce_op"] = options.reduceOp.op.name
    if splits is not None:
        plain["sends"], plain["receives"] = (_each(split, len(members)) for split in splits)
    return plain


def _each(split: list[int] | int, members: int) -> list[int]:
    """Elements by rank, of a list of them or of a whole that is split evenly."""
    return split if isinstance(split, list) else [split // max(1, members)] * members


def _members(name: str) -> tuple[list[int], bool]:
    """Ranks of the group with this name, and whether it was given a shorter timeout than the cluster's."""
    c10d = dist.distributed_c10d
    for group, its_name in list(c10d._world.pg_names.items()):
        if its_name == name:
            limit = getattr(group, "timeout", c10d.default_pg_timeout)  # of a group in Python, as over mpi4py
            with contextlib.suppress(Exception):  # private, and not every backend has options
                limit = group._get_backend(group._device_types[0]).options._timeout
            return dist.get_process_group_ranks(group), limit < c10d.default_pg_timeout
    return [], False


def _lines(thread: int) -> list[tuple[str, int, str, str, bool]]:
    found = []
    for frame in frames(thread):
        if is_learners(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
    return [line_of(*line) for line in reversed(found)]


# --- whether anything happens ---


def _still(ours: set[int]) -> bool:
    """Whether no thread of the learner's code or of gloo's workers runs or wants to run."""
    ours = ours | {thread.native_id for thread in threading.enumerate() if thread.name.startswith("distlab-")}
    for number, name, status in _threads():
        if number not in ours and name != GLOO_LOOP and status in ("R", "D"):
            return False
    return True


def _native_id(thread: int) -> int | None:
    """The system's number of a thread."""
    return next((one.native_id for one in threading.enumerate() if one.ident == thread), None)


def _threads() -> Iterator[tuple[int, str, str]]:
    """The threads of this process as (the system's number, name, status letter); none where /proc is missing."""
    for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/stat") as file:
            head, _, tail = file.read().rpartition(")")
            yield int(task), head.partition("(")[2], tail.split()[0]


def _rounds() -> list[int]:
    """How often each of gloo's threads that read from sockets has run."""
    rounds = []
    for number, name, _ in _threads():
        if name == GLOO_LOOP:
            with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/schedstat") as file:
                rounds.append(int(file.read().split()[2]))
    return rounds


def _other_threads(main: int, ours: set[int]) -> bool:
    """Whether a thread that was started in a cell may still communicate, or lend a hand to something that does.

    One that runs no code of the learner's now may run some later, as a timer does; only what waits for work is known
    not to.
    """
    for thread in threading.enumerate():
        if thread.ident in (None, main) or thread.native_id in ours or thread.name.startswith("distlab-"):
            continue
        stack = list(frames(thread.ident))
        places = [(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in stack]
        waits_for_work = any(module in WAITING_FOR_WORK for module, _ in places) and BUSY_IN_A_POOL not in places
        if not waits_for_work or any(is_learners(frame.f_code.co_filename) for frame in stack):
            return True
    return False


def _ends(identities: Iterable[tuple[int, int]]) -> Iterator[socket.socket]:
    """The TCP sockets among the identities, as duplicates."""
    for descriptor, inode in identities:
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino != inode:
                continue
            with socket.socket(fileno=os.dup(descriptor)) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM:
                    yield end


def _bytes_moved(identities: Iterable[tuple[int, int]]) -> int:
    total = 0
    for end in _ends(identities):
        with contextlib.suppress(OSError, AttributeError, struct.error):
            info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            total += sum(struct.unpack_from("=QQ", info, BYTES_ACKED))
    return total


def _under_way(identities: Iterable[tuple[int, int]]) -> bool:
    """Whether a byte waits to be sent, to be acknowledged or to be read."""
    for end in _ends(identities):
        for question in (termios.FIONREAD, termios.TIOCOUTQ):
            with contextlib.suppress(OSError):
                if struct.unpack("i", fcntl.ioctl(end, question, b"\0\0\0\0"))[0]:
                    return True
    return False
