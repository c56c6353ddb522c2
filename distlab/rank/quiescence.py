"""Whether anything on this rank may still act by itself while its main thread waits.

Runs on every rank, on the watchdog's thread, called by status.py. A proof of a deadlock relies on
it, and so each doubt counts as activity: a false alarm is worse than silence.
"""

import asyncio
import contextlib
import inspect
import signal
import sys
import threading
from types import FrameType
from typing import Any

from distlab.compat import ipython
from distlab.rank.frames import module_and_function, outwards
from distlab.rank.log import LOG
from distlab.rank.threads import system_threads
from distlab.wire.source import is_learners, runs_learners_code

# modules whose threads do nothing until they get work; zmq's is there when this rank has sent a
# large value
_POOLS = "concurrent.futures.thread"
_QUEUES = "multiprocessing.queues"
WAITING_FOR_WORK = (_POOLS, _QUEUES, "tqdm._monitor", ipython.HISTORY, "zmq.utils.garbage")
BUSY_IN_A_POOL = (_POOLS, "run")  # in this function, a thread of a pool runs what it was given
GLOO_LOOP = "gloo_tcp_loop"  # gloo's name for its thread that reads from sockets
ROUND_NANOSECONDS = 5_000_000  # of computing that count as a wakeup


def nothing_may_act(
    main: int,
    infrastructure_tids: set[int],
    loop: asyncio.AbstractEventLoop | None,
    loop_stands: bool,
) -> bool:
    """Whether no thread, timer or task of this rank may begin anything before the main thread does.

    Args:
        main: identifier of the main thread.
        infrastructure_tids: the system's numbers of threads that are neither the learner's nor
            gloo's.
        loop: the event loop on which cells run.
        loop_stands: whether the main thread is where the loop continues nothing.
    """
    if others_may_act(main, infrastructure_tids) or timer_is_set():
        return False
    return loop_stands or not has_plans_of_learner(loop)


def gloo_wakeups(infrastructure_tids: set[int]) -> tuple[int, ...] | None:
    """How often each of gloo's threads that read from sockets has run.

    One that finds nothing sleeps, and its number stays the same. One that finds a message that it
    must not take busy-waits, without a switch of threads: every few milliseconds of that count as a
    wakeup, too.

    Args:
        infrastructure_tids: the system's numbers of threads that are neither the learner's nor
            gloo's.

    Returns:
        None while another thread runs or wants to run.
    """
    found = []
    for tid in system_threads():
        with contextlib.suppress(OSError):  # the thread may end while its files are read
            fields = _fields_of(tid)
            if fields["Name"].strip() == GLOO_LOOP:
                rounds = _nanoseconds_of(tid) // ROUND_NANOSECONDS
                found.append(int(fields["voluntary_ctxt_switches"]) + rounds)
            elif tid not in infrastructure_tids and _is_running(fields):
                return None
    return tuple(found)


def _fields_of(tid: int) -> dict[str, str]:
    """What Linux says of a thread, by the name of the field."""
    fields = {}
    with open(f"/proc/self/task/{tid}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            fields[name] = value
    return fields


def _is_running(fields: dict[str, str]) -> bool:
    """Whether a thread runs, wants to run or waits for a disk: "R (running)", say."""
    state, *_ = fields["State"].split()
    return state in ("R", "D")


def _nanoseconds_of(tid: int) -> int:
    """How long a thread has computed."""
    with open(f"/proc/self/task/{tid}/schedstat") as file:
        computed, *_ = file.read().split()
    return int(computed)


def others_may_act(main: int, infrastructure_tids: set[int]) -> bool:
    """Whether a thread other than the main one may still communicate, or help one that does.

    One that is not running the learner's code may run some later, as a timer does; only one that
    waits for work, or in a call of the log, is known not to. C++ starts threads as well, which
    `threading` does not know, and which have frames when they run Python: all are looked at by
    their frames.

    Args:
        main: identifier of the main thread.
        infrastructure_tids: the system's numbers of threads that are neither the learner's nor
            gloo's.
    """
    harmless = {main}
    for thread in threading.enumerate():
        if thread.native_id in infrastructure_tids and thread.ident is not None:
            harmless.add(thread.ident)
    running = sys._current_frames()
    # this thread's own: a frame that holds itself would keep all the others alive
    del running[threading.get_ident()]
    for thread_id, innermost in running.items():
        if thread_id in harmless or LOG.waiting_in.get(thread_id):
            continue
        if not _only_waits_for_work(innermost):
            return True
    return False


def _only_waits_for_work(innermost: FrameType) -> bool:
    """Whether a thread waits until it gets work, and none of the learner's code has called it."""
    stack = list(outwards(innermost))
    if any(map(runs_learners_code, stack)):
        return False
    functions = list(map(module_and_function, stack))
    if BUSY_IN_A_POOL in functions:
        return False
    return any(module in WAITING_FOR_WORK for module, _ in functions)


def timer_is_set() -> bool:
    """Whether a timer of this process will interrupt the main thread, whatever that does."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def has_plans_of_learner(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether the event loop of cells will continue a task, or call a function, of the learner's.

    Not what libraries have planned: the engine itself always waits for messages there.
    """
    if loop is None:
        return False
    # private: what the loop will call. Before its tasks, because a call may begin a task meanwhile.
    handles = [*getattr(loop, "_scheduled", ()), *getattr(loop, "_ready", ())]
    callbacks = [getattr(handle, "_callback", None) for handle in handles if not handle.cancelled()]
    tasks = asyncio.all_tasks(loop)
    if any(_awaits_learners(task.get_coro()) for task in tasks):
        return True
    return any(map(_is_learners_function, callbacks))


def _is_learners_function(function: Any) -> bool:
    """Whether a function, or what a partial one or a method calls, is the learner's."""
    function = getattr(function, "func", function)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    return code is not None and is_learners(code.co_filename)


def _awaits_learners(coroutine: Any) -> bool:
    """Whether a coroutine, or one that it awaits, is the learner's."""
    if not inspect.iscoroutine(coroutine):
        return False
    return is_learners(coroutine.cr_code.co_filename) or _awaits_learners(coroutine.cr_await)
