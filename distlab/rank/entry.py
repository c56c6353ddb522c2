"""What the notebook may call on a rank: join and rebuild the group, run a function, define and read variables.

Imported in the notebook's kernel too, which sends these functions and has no torch: what needs torch is imported on
the rank, where it is there already.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import traceback
from dataclasses import replace
from typing import Any

from distlab.errors import SerializationError
from distlab.wire import payload
from distlab.wire.messages import Failure
from distlab.wire.source import is_learners, line_of

_TORCH_DISTRIBUTED = os.path.join("torch", "distributed")
# what gloo, and waits in Python (log.waiting), say on a rank whose peer did not come, or went away
WAITED = re.compile(
    r"Timed out waiting|Connection (was likely )?(closed|reset|refused)|Broken pipe|pair closure|Read error|Write error"
    r"|Socket closed|^Freed while it waited|^(EOF|ECONNRESET|EPIPE|ECONNREFUSED): "
)


def where() -> str:
    """Name of the host that an engine runs on. Runs on: an engine that is no rank yet."""
    return socket.gethostname()


def join(rank: int, meeting: Any) -> dict[str, Any]:
    """Become rank `rank` of the group that meets at `meeting`; see group.join. Runs on: every rank."""
    from distlab.rank import group

    return group.join(rank, meeting)


def rebuild(rank: int, meeting: Any, whole: bool) -> dict[str, Any]:
    """Leave the group and build it anew; see group.rebuild. Runs on: every rank."""
    from distlab.rank import group

    return group.rebuild(rank, meeting, whole)


def settle() -> None:
    """Answer when every signal that has come has been acted on; an answer means that this rank is idle."""
    from distlab.rank import watchdog

    watchdog.settle()


def begin_checks(token: str, host: str, port: int, limit: float) -> None:
    """Compare the arguments of calls between the ranks from now on; see checks.Checker for the arguments."""
    from distlab.rank.checks import LOG, Checker

    LOG.checker = Checker(token, host, port, limit)


def end_checks() -> None:
    """Compare no more; what was begun and still waits for the other ranks is made unchecked."""
    from distlab.rank import checks

    checks.end()


def start_recording() -> None:
    """Begin to record what this rank does; see recording.start. Runs on: a rank."""
    from distlab.rank import recording

    recording.start()


def stop_recording() -> Any:
    """End the recording and tell what was recorded; see recording.stop. Runs on: a rank."""
    from distlab.rank import recording

    return recording.stop()


def call(header: bytes, buffers: list[Any]) -> list[Any]:
    """Call the function in the payload as fn(rank, world_size, *args, **kwargs).

    Names that the function uses come from the notebook; those that the notebook does not have, from this rank.

    Runs on: a rank.

    Returns:
        what `payload.dumps` made of the value, [header, *buffers]; or [Failure], or [SerializationError].
    """
    from distlab.rank.log import LOG

    try:
        fn, args, kwargs = payload.loads(header, buffers)
        lend_names(fn)
        value = fn(LOG.rank, LOG.world_size, *args, **kwargs)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return [describe_failure(error)]
    return _packed(value, type(value).__qualname__)


def push(header: bytes, buffers: list[Any]) -> None:
    """Define the names of the payload, a dict, on this rank."""
    _namespace().update(payload.loads(header, buffers))


def pull(names: list[str]) -> list[Any]:
    """Those of `names` that are defined, and their values, a dict as [header, *buffers]; or [SerializationError]."""
    namespace = _namespace()
    return _packed({name: namespace[name] for name in names if name in namespace}, ", ".join(names))


def _packed(value: Any, what: str) -> list[Any]:
    try:
        header, buffers = payload.dumps(value)
    except Exception as error:
        from distlab.rank.log import LOG

        words = f"The value of rank {LOG.rank}, {what}, cannot be sent to the notebook"
        advice = "Return plain values or tensors, or leave it on the rank: a %%px cell can use it there."
        return [SerializationError(f"{words} ({type(error).__name__}: {error}). {advice}")]
    return [header, *buffers]


def last_failure() -> Failure | None:
    """The failure of the cell that ran last on this rank; None when it did not fail."""
    error = getattr(sys, "last_value", None)
    return None if error is None else describe_failure(error)


def describe_failure(error: BaseException) -> Failure:
    """An exception in the form in which the notebook gets it, with the learner's own lines."""
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


def _namespace() -> dict[str, Any]:
    """Where %%px cells run: the rank's __main__."""
    return sys.modules["__main__"].__dict__


def lend_names(fn: Any, **names: Any) -> None:
    """Give a function that came by value the names of this rank that its notebook did not have, and `names`."""
    fn = getattr(fn, "func", fn)
    own = getattr(getattr(fn, "__func__", fn), "__globals__", {})
    home = sys.modules.get(own.get("__name__", ""))
    if home is None or vars(home) is not own:
        for name, value in _namespace().items():
            own.setdefault(name, value)
        own.update(names)
