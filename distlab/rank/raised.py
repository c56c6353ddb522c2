"""What a rank has raised, as the notebook receives it, and whether the rank itself is at fault.

Runs on every rank; entry.py, rpc_calls.py and the debugger call it.
"""

import asyncio
import os
import re
import traceback
from dataclasses import replace

import torch.distributed as dist

from distlab.rank.log import LOG, note_of_error
from distlab.rank.records import record_of
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.messages import Failure
from distlab.wire.source import described

_TORCH_DISTRIBUTED = os.path.join("torch", "distributed")
# what gloo, and waits in Python (waits.py), say on a rank whose peer did not arrive, or went away
WAITED = re.compile(
    r"Timed out waiting|Connection (was likely )?(closed|reset|refused)|Broken pipe|pair closure"
    r"|Read error|Write error|Socket closed|client socket has timed out"
    r"|Timed out after \d+ seconds waiting for clients|[Ww]ait timeout|Timeout waiting for key"
    r"|^Freed while it waited|^(EOF|ECONNRESET|EPIPE|ECONNREFUSED): "
)

# how messages of errors are known that no frame of torch.distributed has raised, as where a program
# waits for a Work
OF_COMMUNICATION = re.compile("gloo|^Freed while it waited|^Timed out waiting|pair closure")


def describe_failure(error: BaseException) -> Failure:
    """An exception as the notebook receives it, with the learner's own lines."""
    message, lines = described(error)
    stack = traceback.extract_tb(error.__traceback__, limit=200)
    passed_torch = any(_TORCH_DISTRIBUTED in frame.filename for frame in stack)
    communicated = (
        passed_torch
        or isinstance(error, dist.DistNetworkError)
        or OF_COMMUNICATION.search(message) is not None
    )
    # only as a RuntimeError, which gloo and waits in Python raise
    waited = communicated and isinstance(error, RuntimeError) and bool(WAITED.search(message))
    note = note_of_error(error)
    return Failure(
        rank=THIS_RANK.rank,
        kind=type(error).__name__,
        message=message,
        lines=lines,
        traceback="".join(traceback.format_exception(error)),
        consequence=waited,
        communicated=communicated,
        call=None if note is None else record_of(note),
        handled=_handled(error) if communicated else None,
    )


def _handled(error: BaseException) -> Failure | None:
    """The error of the learner's own code that was being handled when this one was raised.

    The first one of several; None without one. One that a library has handled has none of the
    learner's lines.
    """
    found = None
    while error.__context__ is not None and not error.__suppress_context__:
        error = error.__context__
        failure = describe_failure(error)
        if failure.lines and not failure.communicated:
            found = replace(failure, traceback="")
    return found


def is_at_fault(error: BaseException) -> bool:
    """Whether this rank raises by itself.

    It was not interrupted, and not freed from a wait for another rank before.
    """
    if LOG.closed or isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
        return False
    return not describe_failure(error).consequence
