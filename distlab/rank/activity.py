"""Whether anything happens on this rank, or may happen by itself: a proof of a deadlock rests on it.

Runs on every rank, on the watchdog's thread, called by status.py. What looks still is told from what is finished: a
thread that sleeps, a timer, a task of an event loop or the handler of a signal may still send, and only what is known
to wait for work does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from distlab.compat.ipython import HISTORY
from distlab.compat.torch import GLOO_NAMES_ITS_LOOP
from distlab.rank.log import LOG
from distlab.rank.rpc import AGENT
from distlab.wire.source import is_learners

GLOO_LOOP = "gloo_tcp_loop"  # since torch 2.9, gloo's name for its thread that reads from sockets
EPOLL_WAIT = ("232", "281", "22")  # Linux's numbers of epoll_wait and epoll_pwait, on x86-64 and on arm64
WAITING_FOR_WORK = (
    "concurrent.futures.thread",
    "multiprocessing.queues",
    "tqdm._monitor",
    HISTORY,
    "zmq.utils.garbage",  # there from the first large value on that this rank has sent to the notebook
)
BUSY_IN_A_POOL = ("concurrent.futures.thread", "run")


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, and those that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames(thread: int) -> Iterator[FrameType]:
    """The Python frames of a thread, innermost first."""
    return outwards(sys._current_frames().get(thread))


def actors(main: int, ours: set[int]) -> list[int]:
    """The threads besides the main one that may still communicate, or lend a hand to something that does.

    One that runs no code of the learner's now may run some later, as a timer does; only what waits for work is known
    not to. C++ starts threads too, which threading does not know, and which have frames when they run Python. A remote
    call that is served and waits in a call itself does not count: status.py has it.

    Args:
        main: identifier of the main thread. ours: system numbers of threads that were there before the group.
    """
    known = {thread.ident: thread for thread in threading.enumerate()}
    running = sys._current_frames()
    own = threading.get_ident()
    serving = [thread for thread in AGENT.serving if LOG.now.get(thread)]
    del running[own]  # a frame that holds itself would keep all the others
    # its first line is yet to run; but a thread of C++ that has run Python once may be known as a dummy ever after
    of_python = (ident for ident, thread in known.items() if not isinstance(thread, threading._DummyThread))  # noqa: SLF001
    may_act = [ident for ident in of_python if ident not in (*running, main, own)]
    for ident, innermost in running.items():
        thread = known.get(ident)
        if ident == main or ident in serving or (thread is not None and thread.native_id in ours):
            continue
        stack = list(outwards(innermost))
        is_ours = thread is not None and thread.name.startswith("distlab-")
        places = [(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in stack]
        waits_for_work = any(module in WAITING_FOR_WORK for module, _ in places) and BUSY_IN_A_POOL not in places
        if any(is_learners(frame.f_code.co_filename) for frame in stack) or not (is_ours or waits_for_work):
            may_act.append(ident)
    return may_act


def plans(main: int, loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether something that is not a thread acts or will act: a timer, a task, an answer, the handler of a signal.

    Args:
        main: identifier of the main thread, on which handlers run, also on top of a wait.
        loop: the event loop on which it runs cells; None for none.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0]:  # others count the time that a process computes
        return True
    handlers = {_learners_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    if handlers and (_has_children() or any(frame.f_code in handlers for frame in frames(main))):
        return True
    return loop is not None and _loop_has_plans(loop)


def _loop_has_plans(loop: Any) -> bool:
    """Whether the learner has left a task, a timer or a reader with the loop."""
    try:
        handles = list(loop._scheduled)  # noqa: SLF001 - asyncio has no other way to tell its timers
        for key in list(loop._selector.get_map().values()):
            handles += [handle for handle in key.data if handle is not None]
        if any(_learners_code(call) for handle in handles for call in (handle._callback, *(handle._args or ()))):
            return True
        return any(is_learners(code.co_filename) for task in asyncio.all_tasks(loop) for code in _coroutines(task))
    except (RuntimeError, AttributeError, TypeError):  # it changed while it was looked at, or is of another kind
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


def _has_children() -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def threads() -> set[int]:
    """The system's numbers of the threads of this process; none where /proc is missing."""
    return {int(name) for name in os.listdir("/proc/self/task")} if os.path.isdir("/proc/self/task") else set()


def rounds(ours: set[int]) -> tuple[int, ...] | None:
    """How often each of gloo's threads that read from sockets has run; None while another thread runs or wants to run.

    Args:
        ours: system numbers of threads that are not the learner's and not gloo's.
    """
    ours = ours | {thread.native_id for thread in threading.enumerate() if thread.name.startswith("distlab-")}
    found = []
    for task in threads():
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/status") as file:
            told = dict(line.split(":", 1) for line in file)
            if told["Name"].strip() == GLOO_LOOP:
                found.append(int(told["voluntary_ctxt_switches"]))
            elif task not in ours and told["State"].split()[0] in ("R", "D"):
                return None
            elif task not in ours and not GLOO_NAMES_ITS_LOOP:
                _name_loop(task)
    return tuple(found)


def _name_loop(task: int) -> None:
    """Give a thread its name where it waits as only gloo's loop does: in epoll, for 10 ms at a time."""
    with open(f"/proc/self/task/{task}/syscall") as file:
        number, *arguments = file.read().split()
    if number in EPOLL_WAIT and arguments[3] == "0xa":
        with open(f"/proc/self/task/{task}/comm", "w") as file:
            file.write(GLOO_LOOP)
