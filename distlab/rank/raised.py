"""What a rank has raised, as the notebook receives it, and whether the rank itself is at fault.

Runs on every rank; entry.py, rpc_calls.py, frames.py, the debugger and testing/on_rank.py call it.
"""

import asyncio
import os
import re
import traceback

import torch.distributed as dist

from distlab.rank.chains import chain_of
from distlab.rank.log import LOG, note_of_error
from distlab.rank.records import record_of
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.messages import Failure
from distlab.wire.source import frames_of, message_and_lines

_TORCH_DISTRIBUTED = os.path.join("torch", "distributed")
# what gloo, torch and waits in Python (freed.py) say on a rank whose peer did not arrive, or went
# away
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
    message, lines = message_and_lines(error)
    communicated = _comes_from_communication(error, message)
    note = note_of_error(error)
    return Failure(
        rank=THIS_RANK.rank,
        kind=type(error).__name__,
        message=message,
        lines=lines,
        traceback="".join(traceback.format_exception(error)),
        consequence=communicated and _says_that_it_waited(error, message),
        communicated=communicated,
        call=None if note is None else record_of(note),
        handled=_handled(error) if communicated else None,
        status=_status(error),
    )


def _status(error: BaseException) -> int:
    """The exit status of a program that ends with an exception."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return int(error.code)
    return 1


def _comes_from_communication(error: BaseException, message: str) -> bool:
    """Whether a call of torch.distributed raised an exception, or a wait for one."""
    if isinstance(error, dist.DistNetworkError) or OF_COMMUNICATION.search(message):
        return True
    return any(_TORCH_DISTRIBUTED in frame.filename for frame in frames_of(error))


def _says_that_it_waited(error: BaseException, message: str) -> bool:
    """Whether an exception of communication is that of a rank whose peer did not come.

    It is only one as a RuntimeError, which gloo and waits in Python raise.
    """
    return isinstance(error, RuntimeError) and WAITED.search(message) is not None


def _handled(error: BaseException) -> Failure | None:
    """The error of the learner's own code that was being handled when this one was raised.

    The oldest of several; None without one. One that a library has handled has none of the
    learner's lines. A loop that tries again in its `except` makes a chain of many errors, so each
    is looked at once.
    """
    found = None
    for earlier in chain_of(error)[1:]:
        message, lines = message_and_lines(earlier)
        if lines and not _comes_from_communication(earlier, message):
            found = Failure(THIS_RANK.rank, type(earlier).__name__, message, lines)
    return found


def is_at_fault(error: BaseException) -> bool:
    """Whether this rank raises by itself.

    It was not interrupted, and not freed from a wait for another rank before.
    """
    if LOG.closed or isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
        return False
    message, _ = message_and_lines(error)
    waited = _says_that_it_waited(error, message)
    return not (waited and _comes_from_communication(error, message))
