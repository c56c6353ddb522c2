"""Whether anything happens on this rank, or may happen by itself: a proof of a deadlock rests on it.

Runs on every rank, on the sentinel's thread, called by state.py. What looks still is told from what is finished: a
thread that sleeps, a timer, a task of an event loop or the handler of a signal may still send, and only what is known
to wait for work does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import signal
import socket
import struct
import sys
import termios
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch.distributed as dist

from distlab.notes import NOTES
from distlab.source import is_learners

GLOO_LOOP = "gloo_tcp_loop"  # gloo's name for its thread that reads from sockets
WAITING_FOR_WORK = (
    "concurrent.futures.thread",
    "multiprocessing.queues",
    "tqdm._monitor",
    "IPython.core.history",
    "zmq.utils.garbage",  # there from the first large value on that this rank has sent to the notebook
)
BUSY_IN_A_POOL = ("concurrent.futures.thread", "run")
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
BYTES_ACKED, BYTES_RECEIVED = 120, 128  # offsets in Linux's struct tcp_info


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, and those that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def actors(main: int, ours: set[int]) -> list[int]:
    """The threads besides the main one that may still communicate, or lend a hand to something that does.

    One that runs no code of the learner's now may run some later, as a timer does; only what waits for work is known
    not to. C++ starts threads too, which threading does not know, and which have frames when they run Python.

    Args:
        main: identifier of the main thread. ours: system numbers of threads that were there before the group.
    """
    known = {thread.ident: thread for thread in threading.enumerate()}
    running = sys._current_frames()
    own = threading.get_ident()
    del running[own]  # a frame that holds itself would keep all the others
    may_act = [ident for ident in known if ident not in (*running, main, own)]  # its first line is yet to run
    for ident, innermost in running.items():
        thread = known.get(ident)
        if ident == main or (thread is not None and thread.native_id in ours):
            continue
        stack = list(outwards(innermost))
        is_ours = thread is not None and thread.name.startswith("distlab-")
        places = [(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in stack]
        waits_for_work = any(module in WAITING_FOR_WORK for module, _ in places) and BUSY_IN_A_POOL not in places
        if any(is_learners(frame.f_code.co_filename) for frame in stack) or not (is_ours or waits_for_work):
            may_act.append(ident)
    return may_act


def plans(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether something that is not a thread will act: a timer, a task, an answer, a child that may send a signal.

    Args:
        loop: the event loop on which the main thread runs cells; None for none.
    """
    if any(signal.getitimer(which)[0] for which in TIMERS):
        return True
    if (handlers() and _has_children()) or _calls_elsewhere():
        return True
    return loop is not None and _loop_has_plans(loop)


def _loop_has_plans(loop: Any) -> bool:
    """Whether the learner has left a task, a timer or a reader with the loop."""
    try:
        handles = [handle for handle in list(getattr(loop, "_scheduled", ())) if not handle.cancelled()]
        for key in list(loop._selector.get_map().values()) if hasattr(loop, "_selector") else ():
            handles += [handle for handle in key.data if handle is not None]
        if any(_learners_code(call) for handle in handles for call in (handle._callback, *(handle._args or ()))):
            return True
        return any(is_learners(code.co_filename) for task in asyncio.all_tasks(loop) for code in _coroutines(task))
    except (RuntimeError, AttributeError, TypeError):  # it changed while it was looked at
        return True


def _coroutines(task: Any) -> Iterator[Any]:
    """The code of a task's coroutine, and of those that it awaits."""
    waits = task.get_coro()
    while waits is not None:
        code = getattr(waits, "cr_code", getattr(waits, "gi_code", None))
        if code is not None:
            yield code
        waits = getattr(waits, "cr_await", getattr(waits, "gi_yieldfrom", None))


def _learners_code(call: Any) -> Any:
    """The code of a function of the learner's, perhaps inside a partial or a method; None of anything else."""
    while isinstance(call, functools.partial):
        call = call.func
    code = getattr(getattr(call, "__func__", call), "__code__", None)
    return code if code is not None and is_learners(code.co_filename) else None


def handlers() -> set[Any]:
    """The code of the learner's handlers of signals."""
    return {_learners_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}


def _has_children() -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def _calls_elsewhere() -> bool:
    """Whether an answer to a remote procedure call is due here, or from here."""
    rpc = sys.modules.get("torch.distributed.rpc")
    if rpc is None or not dist.rpc.is_available() or not rpc.api._is_current_rpc_agent_set():
        return False
    counts = rpc.api._get_current_rpc_agent().get_debug_info()
    return any(int(count) for name, count in counts.items() if name.endswith("_active_calls"))


def still(ours: set[int]) -> bool:
    """Whether no thread of the learner's code or of gloo's workers runs or wants to run."""
    ours = ours | {thread.native_id for thread in threading.enumerate() if thread.name.startswith("distlab-")}
    for number, name, status in _threads():
        if number not in ours and name != GLOO_LOOP and status in ("R", "D"):
            return False
    return True


def native_id(thread: int) -> int | None:
    """The system's number of a thread."""
    return next((one.native_id for one in threading.enumerate() if one.ident == thread), None)


def _threads() -> Iterator[tuple[int, str, str]]:
    """The threads of this process as (the system's number, name, status letter); none where /proc is missing."""
    for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/stat") as file:
            head, _, tail = file.read().rpartition(")")
            # before torch 2.9 or so gloo gave it no name
            yield int(task), GLOO_LOOP if int(task) in NOTES.loops else head.partition("(")[2], tail.split()[0]


def rounds() -> list[int]:
    """How often each of gloo's threads that read from sockets has run."""
    found = []
    for number, name, _ in _threads():
        if name == GLOO_LOOP:
            with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/schedstat") as file:
                found.append(int(file.read().split()[2]))
    return found


def _ends(identities: Iterable[tuple[int, int]]) -> Iterator[socket.socket]:
    """The TCP sockets among the identities, as duplicates."""
    for descriptor, inode in identities:
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino != inode:
                continue
            with socket.socket(fileno=os.dup(descriptor)) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM:
                    yield end


def bytes_moved(identities: Iterable[tuple[int, int]]) -> int:
    """What these sockets have sent and received."""
    total = 0
    for end in _ends(identities):
        with contextlib.suppress(OSError, AttributeError, struct.error):
            info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            total += sum(struct.unpack_from("=QQ", info, BYTES_ACKED))
    return total


def under_way(identities: Iterable[tuple[int, int]]) -> bool:
    """Whether a byte waits to be sent, to be acknowledged or to be read."""
    for end in _ends(identities):
        for question in (termios.FIONREAD, termios.TIOCOUTQ):
            with contextlib.suppress(OSError):
                if struct.unpack("i", fcntl.ioctl(end, question, b"\0\0\0\0"))[0]:
                    return True
    return False
