"""Whether anything on this rank may still act by itself while its main thread waits.

Runs on every rank, on the watchdog's thread, called by status.py. A proof of a deadlock relies on
it.
"""

import asyncio
import contextlib
import inspect
import signal
import sys
import threading
from typing import Any

from distlab.compat import ipython
from distlab.rank.frames import outwards, place
from distlab.rank.log import LOG
from distlab.rank.threads import system_threads
from distlab.wire.source import is_learners

# modules whose threads do nothing until they get work; zmq's is there when this rank has sent a
# large value
_POOLS, _QUEUES = "concurrent.futures.thread", "multiprocessing.queues"
WAITING_FOR_WORK = (_POOLS, _QUEUES, "tqdm._monitor", ipython.HISTORY, "zmq.utils.garbage")
BUSY_IN_A_POOL = (_POOLS, "run")
GLOO_LOOP = "gloo_tcp_loop"  # gloo's name for its thread that reads from sockets
ROUND_NANOSECONDS = 5_000_000


def loop_rounds(ours: set[int]) -> tuple[int, ...] | None:
    """How often each of gloo's threads that read from sockets has run; None while another thread
    runs or wants to run.

    One that finds nothing sleeps; one that finds a message that it must not take busy-waits, and
    every few milliseconds of that count as a round.

    Args:
        ours: system numbers of threads that are not the learner's and not gloo's.
    """
    found = []
    for task in system_threads():
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
            if fields["Name"].strip() == GLOO_LOOP:
                with open(f"/proc/self/task/{task}/schedstat") as times:
                    computed = int(times.read().split()[0]) // ROUND_NANOSECONDS
                found.append(int(fields["voluntary_ctxt_switches"]) + computed)
            elif task not in ours and fields["State"].split()[0] in ("R", "D"):
                return None
    return tuple(found)


def others_may_act(main: int, ours: set[int]) -> bool:
    """Whether a thread other than the main one may still communicate, or help something that does.

    One that is not running the learner's code may run some later, as a timer does; only one that
    waits for work, or in a call of the log, is known not to. C++ starts threads, too, which
    `threading` does not know, and which have frames when they run Python.

    Args:
        main: identifier of the main thread.
        ours: system numbers of threads that are not the learner's and not gloo's.
    """
    harmless = {
        main,
        *(thread.ident for thread in threading.enumerate() if thread.native_id in ours),
    }
    running = sys._current_frames()
    del running[threading.get_ident()]  # a frame that holds itself would keep all the others alive
    for ident, innermost in running.items():
        if ident in harmless or LOG.waiting_in.get(ident):
            continue
        stack = list(outwards(innermost))
        waits_for_work = any(
            place(f)[0] in WAITING_FOR_WORK for f in stack
        ) and BUSY_IN_A_POOL not in map(place, stack)
        if any(is_learners(frame.f_code.co_filename) for frame in stack) or not waits_for_work:
            return True
    return False


def timer_is_set() -> bool:
    """Whether a timer of this process will interrupt the main thread, whatever that does."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def plans(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether the event loop of cells will continue a task of the learner's, or call a function at
    a time.
    """
    if loop is None:
        return False
    # private: what the loop will call
    handles = [*getattr(loop, "_scheduled", ()), *getattr(loop, "_ready", ())]
    calls = [getattr(handle, "_callback", None) for handle in handles if not handle.cancelled()]
    tasks = [task.get_coro() for task in asyncio.all_tasks(loop)]
    return any(map(_awaits_learners, tasks)) or any(map(_is_learners_function, calls))


def _is_learners_function(function: Any) -> bool:
    """Whether a function, or what a partial one or a method calls, is the learner's."""
    function = getattr(function, "func", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and is_learners(code.co_filename)


def _awaits_learners(coroutine: Any) -> bool:
    """Whether a coroutine, or one that it awaits, is the learner's."""
    if not inspect.iscoroutine(coroutine):
        return False
    return is_learners(coroutine.cr_code.co_filename) or _awaits_learners(coroutine.cr_await)
