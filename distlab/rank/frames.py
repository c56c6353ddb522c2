"""The Python frames of this rank's threads: where each is, and whether that is the learner's code.

Runs on every rank, on any thread: status.py, threads.py, quiescence.py and watchdog.py look from
the watchdog's.
"""

import asyncio
import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from distlab.compat import ipyparallel, ipython
from distlab.rank.raised import describe_failure, is_at_fault
from distlab.wire.source import Line, is_learners, line_of, runs_learners_code

# where the engine runs a cell, and where a call of the notebook's
CELLS = {ipython.RUNS_CELL, ipyparallel.RUNS_CALL}
# where a rank of a launcher runs a call: its function does nothing else
CALLS = ("distlab.rank.serving", "make_call")


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, and those that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames(thread: int) -> Iterator[FrameType]:
    """The Python frames of a thread, innermost first."""
    return outwards(sys._current_frames().get(thread))


def module_and_function(frame: FrameType) -> tuple[str, str]:
    """The module and the function that a frame runs; a learner's function may have any name."""
    return frame.f_globals.get("__name__", ""), frame.f_code.co_name


def is_executing(frame: FrameType | None) -> bool:
    """Whether this frame, or one that it was called from, is code of a cell or of a call.

    A coroutine or a callback of the learner's that the event loop runs counts as well. What the
    engine does around that code, such as unpacking a message or reporting an exception, does not:
    an interrupt there would lose a message or the report.
    """
    describing = (describe_failure.__code__, is_at_fault.__code__)
    inner = None  # the frame that `outer` has called
    is_below_learners = False
    for outer in outwards(frame):
        where = module_and_function(outer)
        if outer.f_code in describing or where in ipython.SHOW_ERROR:
            return False
        if where == CALLS:
            return inner is not None
        if where in CELLS:
            # these functions also do other things; what exec runs has a name in angle brackets
            return inner is not None and inner.f_code.co_name.startswith("<")
        # in the step itself nothing runs yet: it is the cell's if a cell runs the loop
        if where == ipython.LOOP_STEP and inner is not None:
            module, _ = module_and_function(inner)
            return is_below_learners and not module.startswith(ipython.OF_THE_ENGINE)
        is_below_learners = is_below_learners or runs_learners_code(outer)
        inner = outer
    return False


def is_in_cell(frame: FrameType | None) -> bool:
    """Whether a cell or a call has called this frame, and not the event loop for another task."""
    return any(module_and_function(outer) in {*CELLS, CALLS} for outer in outwards(frame))


def is_importing(frame: FrameType | None) -> bool:
    """Whether a library is being imported, which must not be interrupted: it would stay broken.

    A module of the learner's own may be: it may compute or communicate for as long as it likes.
    """
    imported = ""  # the file of the frame that Python's import machinery has called
    for outer in outwards(frame):
        if not outer.f_code.co_filename.startswith("<frozen importlib."):
            imported = outer.f_code.co_filename
        elif not is_learners(imported):
            return True
    return False


def lines_of_coroutine(task: asyncio.Task[Any] | None) -> tuple[Line, ...]:
    """The learner's lines at which a task waits, outermost first; none without a task."""
    if task is None:
        return ()
    lines = []
    coroutine: Any = task.get_coro()
    while inspect.iscoroutine(coroutine):
        frame = coroutine.cr_frame
        if frame is not None and runs_learners_code(frame):
            lines.append(_line_at(frame))
        coroutine = coroutine.cr_await
    return tuple(lines)


def lines_of_thread(thread: int) -> tuple[Line, ...]:
    """The learner's lines that a thread is in, outermost first."""
    # all frames at once: to read a line takes time, in which the thread goes on
    innermost_first = list(filter(runs_learners_code, frames(thread)))
    return tuple(map(_line_at, reversed(innermost_first)))


def _line_at(frame: FrameType) -> Line:
    code = frame.f_code
    return line_of(code.co_filename, frame.f_lineno or 0, code.co_name)
