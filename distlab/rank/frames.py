"""The Python frames of this rank's threads: where each is, and whether that is the learner's code.

Runs on every rank, on any thread: status.py and watchdog.py look from the watchdog's.
"""

import asyncio
import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from distlab.compat import ipyparallel, ipython
from distlab.rank.raised import describe_failure
from distlab.wire.source import Line, is_learners, line_of

CELLS = {ipython.CELL, ipyparallel.CALL}


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, and those that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames(thread: int) -> Iterator[FrameType]:
    """The Python frames of a thread, innermost first."""
    return outwards(sys._current_frames().get(thread))


def place(frame: FrameType) -> tuple[str, str]:
    """The module and the function that a frame runs; a learner's function may have any name."""
    return frame.f_globals.get("__name__", ""), frame.f_code.co_name


def executing(frame: FrameType | None) -> bool:
    """Whether this frame, or one that it was called from, is code of a cell or of a call of the
    notebook.

    A coroutine or a callback of the learner's that the event loop runs counts, too. What the engine
    does around that code, such as unpacking a message or reporting an exception, does not.
    """
    inner, learners = None, False
    for outer in outwards(frame):
        where = place(outer)
        if outer.f_code is describe_failure.__code__ or where in ipython.SHOW_ERROR:
            return False
        if where in CELLS:
            # the code that exec runs
            return inner is not None and inner.f_code.co_name.startswith("<")
        if where == ipython.LOOP_STEP:
            return learners and not place(inner)[0].startswith(ipython.OF_THE_ENGINE)
        learners = learners or is_learners(outer.f_code.co_filename)
        inner = outer
    return False


def in_cell(frame: FrameType | None) -> bool:
    """Whether this frame was called from a cell or a call, and not from the event loop for a task
    beside it.
    """
    return any(place(outer) in CELLS for outer in outwards(frame))


def importing(frame: FrameType | None) -> bool:
    """Whether a library is being imported, which must not be interrupted: half imported, it would
    stay broken.

    A module of the learner's own may be: it may compute or communicate for as long as it likes.
    """
    imported = ""
    for outer in outwards(frame):
        if not outer.f_code.co_filename.startswith("<frozen importlib."):
            imported = outer.f_code.co_filename
        elif not is_learners(imported):
            return True
    return False


def lines_of_coroutine(task: asyncio.Task[Any] | None) -> tuple[Line, ...]:
    """The learner's lines at which a task waits, outermost first; none without a task."""
    lines, coroutine = [], task and task.get_coro()
    while inspect.iscoroutine(coroutine):
        frame = coroutine.cr_frame
        if frame is not None and is_learners(frame.f_code.co_filename):
            lines.append(line_of(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        coroutine = coroutine.cr_await
    return tuple(lines)


def lines_of(thread: int) -> tuple[Line, ...]:
    """The learner's lines that a thread is in, outermost first."""
    learners = [frame for frame in frames(thread) if is_learners(frame.f_code.co_filename)]
    return tuple(
        line_of(f.f_code.co_filename, f.f_lineno or 0, f.f_code.co_name) for f in reversed(learners)
    )
