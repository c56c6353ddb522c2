"""Describes an exception that a cell or a remote call has raised on this rank. Runs on every rank."""

from __future__ import annotations

import os
import re
import traceback
from dataclasses import replace

from distlab.wire.messages import Failure, is_learners, line_of

_TORCH_DISTRIBUTED = os.path.join("torch", "distributed")
# what gloo, and waits in Python (waits.py), say on a rank whose peer did not come, or went away
WAITED = re.compile(
    r"Timed out waiting|Connection (was likely )?(closed|reset|refused)|Broken pipe|pair closure|Read error|Write error"
    r"|Socket closed|^Freed while it waited|^(EOF|ECONNRESET|EPIPE|ECONNREFUSED): "
)


def describe_failure(error: BaseException) -> Failure:
    """An exception as the notebook receives it, with the learner's own lines."""
    from distlab.rank.log import LOG

    stack = traceback.extract_tb(error.__traceback__, limit=200)
    lines = [line_of(f.filename, f.lineno or 0, f.name) for f in stack if is_learners(f.filename)]
    message = str(error)
    if isinstance(error, SyntaxError):
        message = error.msg
        if error.filename and error.lineno:
            where = line_of(error.filename, error.lineno, "<module>")
            lines.append(replace(where, text=(error.text or "").strip()))
    in_torch = any(_TORCH_DISTRIBUTED in frame.filename for frame in stack)
    communicated = in_torch or bool(re.search("gloo|^Freed while it waited|^Timed out waiting", message))
    waited = communicated and isinstance(error, RuntimeError) and bool(WAITED.search(message))
    whole, kind = "".join(traceback.format_exception(error)), type(error).__name__
    return Failure(LOG.rank, kind, message, tuple(lines), whole, consequence=waited, communicated=communicated)
