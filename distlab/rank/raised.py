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
    in_torch = isinstance(error, dist.DistNetworkError) or any(
        _TORCH_DISTRIBUTED in frame.filename for frame in stack
    )
    communicated = in_torch or bool(OF_COMMUNICATION.search(message))
    waited = communicated and isinstance(error, RuntimeError) and bool(WAITED.search(message))
    whole, kind = "".join(traceback.format_exception(error)), type(error).__name__
    note = note_of_error(error)
    call = record_of(note) if note is not None else None
    handled = _handled(error) if communicated else None
    return Failure(THIS_RANK.rank, kind, message, lines, whole, waited, communicated, call, handled)


def _handled(error: BaseException) -> Failure | None:
    """The first error of the learner's own code that was being handled when this one was raised;
    None without one.

    One that a library has handled has none of the learner's lines.
    """
    found = None
    while error.__context__ is not None and not error.__suppress_context__:
        error = error.__context__
        described = describe_failure(error)
        if described.lines and not described.communicated:
            found = replace(described, traceback="")
    return found


def is_at_fault(error: BaseException) -> bool:
    """Whether this rank raises by itself: it was not interrupted, and not freed from a wait for
    another one before.
    """
    ended = KeyboardInterrupt, asyncio.CancelledError
    return not (LOG.closed or isinstance(error, ended) or describe_failure(error).consequence)
