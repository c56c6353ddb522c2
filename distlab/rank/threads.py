"""What the threads of this rank wait in.

Runs on every rank, on any thread: status.py and watchdog.py look from the watchdog's.
"""

import os
import sys
import threading
from types import FrameType

from distlab.compat import torch as private
from distlab.rank.frames import frames, is_executing, is_importing, module_and_function
from distlab.rank.log import LOG
from distlab.rank.rpc import AGENT
from distlab.wire import messages

DDP = private.DDP_MODULE
DDP_HELPERS = "torch.distributed.utils"
DDP_CONSTRUCTOR = "DistributedDataParallel"
OWN_THREADS = "distlab-"  # the names of distlab's own threads begin so


# --- one thread ---


def name_of_wait(thread: int) -> str:
    """The name of what a thread waits in; "" if it does not communicate.

    Everything that Python begins has a note. What C++ begins has none, as in a backward pass or in
    a checkpoint, and is known by the frames of the functions that led to it.
    """
    note = LOG.waiting_in.get(thread)
    if note is not None:
        return note.op or note.method
    # an import calls nothing that communicates, but has frames of modules such as torch._dynamo,
    # whose names are like those that are looked for
    if is_importing(next(frames(thread), None)):
        return ""
    return _communication_by_frames(thread)


def _communication_by_frames(thread: int) -> str:
    """The name of what a thread waits in, by the outermost function of torch that says it.

    Some modules of torch only say it as long as no frame further in has: a backward pass, and what
    torch.distributed calls on the way.
    """
    found = ""
    innermost = ""  # the module of the innermost frame that is not a wrapper of distlab's
    for frame in frames(thread):
        module, function = module_and_function(frame)
        if not module.startswith("distlab."):
            innermost = innermost or module
        if module == private.C10D_MODULE:
            found = function
        elif module == DDP and innermost in (DDP, DDP_HELPERS):  # not in the model that it calls
            found = messages.DDP_FORWARD if function == "forward" else DDP_CONSTRUCTOR
        elif module.startswith("torch.autograd") and not found:
            found = "backward"
        elif module.startswith(private.DTENSOR_MODULE):
            found = function
        elif module.startswith("torch.distributed") and not found:
            # "checkpoint" for torch.distributed.checkpoint; the functions of this one have names
            # that learners know
            is_functional = module == private.FUNCTIONAL_MODULE
            found = function if is_functional else module.rsplit(".", 1)[1]
        elif not module.startswith(("torch.", "distlab.")):
            break  # the learner's line, or a library that uses torch
    return found


# --- all threads ---


def thread_that_waits(main: int) -> int:
    """The thread that this rank waits with: the main one, or another one in its place.

    Another one counts while the main thread is idle, or waits for a thread: the rank then waits for
    what that thread waits for.
    """
    if name_of_wait(main):
        return main
    running = sys._current_frames().get(main)
    waiting = waiting_threads()
    if waiting and (not is_executing(running) or _waits_for_a_thread(running)):
        return waiting[0]
    return main


def waiting_threads() -> list[int]:
    """The threads that wait in a call of the log.

    Not those that serve remote calls, which are reported apart.
    """
    # without the frames: this one would keep all the others alive
    running = {*sys._current_frames()}
    found = []
    for thread, note in list(LOG.waiting_in.items()):
        if note is None or thread not in running:
            continue
        if thread not in AGENT.serving:
            found.append(thread)
    return found


def _waits_for_a_thread(frame: FrameType | None) -> bool:
    """Whether the main thread waits without a limit in join, result or get.

    Only another thread can end that. With a limit, it may go on by itself.
    """
    if frame is None or frame.f_globals.get("__name__") != "threading":
        return False
    return frame.f_locals.get("timeout", -1) in (None, -1)


def system_threads() -> set[int]:
    """The system's numbers of the threads of this process; none if /proc is missing."""
    if not os.path.isdir("/proc/self/task"):
        return set()
    return {int(name) for name in os.listdir("/proc/self/task")}


def own_tids() -> set[int]:
    """The system's numbers of distlab's own threads."""
    found = set()
    for thread in threading.enumerate():
        if thread.name.startswith(OWN_THREADS) and thread.native_id is not None:
            found.add(thread.native_id)
    return found
