"""The learner's line at which a watched program is.

Runs on every rank; called by forwards.py, steps.py, losses.py, randomness.py and samplers.py.
"""

from __future__ import annotations

import sys

from distlab.rank.frames import outwards
from distlab.wire.source import Line, line_of, runs_learners_code


def learners_line() -> Line | None:
    """The innermost line of the learner's code that this thread is in; None if it is in none."""
    for frame in outwards(sys._getframe(1)):
        if runs_learners_code(frame):
            code = frame.f_code
            return line_of(code.co_filename, frame.f_lineno or 0, code.co_name)
    return None


def is_called_by(package: str) -> bool:
    """Whether a module of this package, or of one inside of it, has called what runs now."""
    for frame in outwards(sys._getframe(1)):
        module = frame.f_globals.get("__name__", "")
        if module == package or module.startswith(package + "."):
            return True
    return False
