"""What the threads of this rank wait in.

Runs on every rank, on any thread: status.py and watchdog.py look from the watchdog's.
"""

import os
import sys
from types import FrameType

from distlab.compat import torch as private
from distlab.rank.frames import executing, frames, importing, place
from distlab.rank.log import LOG
from distlab.rank.rpc import AGENT
from distlab.wire import messages

DDP, DDP_HELPERS = private.DDP_MODULE, "torch.distributed.utils"
DDP_CONSTRUCTOR = "DistributedDataParallel"


def communication(thread: int) -> str:
    """The name of what the thread waits in if it is inside torch.distributed or a backward pass;
    else "".
    """
    note = LOG.waiting_in.get(thread)
    if note is not None:
        return note.op or note.method
    # such as torch._dynamo, whose modules have names like those below
    if importing(next(frames(thread), None)):
        return ""
    found, innermost = "", ""
    for frame in frames(thread):
        module, function = place(frame)
        if not module.startswith("distlab."):  # a wrapper of distlab's is not what the thread is in
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
            found = function if module == private.FUNCTIONAL_MODULE else module.rsplit(".", 1)[1]
        elif not module.startswith(("torch.", "distlab.")):
            break
    return found


def waiting_threads() -> list[int]:
    """The threads that wait in a call of the log, except those that serve remote calls, which are
    reported apart.
    """
    # without the frames: this one would keep all the others alive
    running = {*sys._current_frames()}
    waiting = [
        thread for thread, note in list(LOG.waiting_in.items()) if note and thread in running
    ]
    return [thread for thread in waiting if thread not in AGENT.serving]


def waiter(main: int) -> int:
    """The thread that this rank waits with: the main one, or another one while that is idle or
    waits for a thread.
    """
    if communication(main):
        return main
    running, waiting = sys._current_frames().get(main), waiting_threads()
    return (
        waiting[0] if waiting and (not executing(running) or _waits_for_a_thread(running)) else main
    )


def _waits_for_a_thread(frame: FrameType | None) -> bool:
    """Whether the main thread waits without a limit in join, result or get, which only another
    thread can end.
    """
    if frame is None or frame.f_globals.get("__name__") != "threading":
        return False
    return frame.f_locals.get("timeout", -1) in (None, -1)


def system_threads() -> set[int]:
    """The system's numbers of the threads of this process; none if /proc is missing."""
    return (
        {int(name) for name in os.listdir("/proc/self/task")}
        if os.path.isdir("/proc/self/task")
        else set()
    )
