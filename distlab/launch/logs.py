"""What the engines of a fork server write, and what is left of it when one has ended.

Runs in the process of fork_server.py, and in its children, which write.
"""

import contextlib
import os

LOG_BYTES = 1 << 14  # of the end of an engine's log, reported with its end


def log_of(engine: int) -> str:
    """Path of the log of an engine."""
    return os.path.join(os.environ["IPP_PROFILE_DIR"], "log", f"fork-{engine}.log")


def stderr_of(engine: int) -> str:
    """Path of the file with what an engine has written to stderr past Python."""
    return os.path.join(os.environ["IPP_PROFILE_DIR"], "log", f"stderr-{engine}.log")


def end_of(path: str) -> bytes:
    """The end of a file; nothing if there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        return file.read()
    return b""


def fault_of(engine: int) -> str:
    """What an engine was doing if a fault in compiled code ended it."""
    from distlab.wire import faults  # now: a server whose engines all live does not need it

    return faults.pop_learners_part(os.environ["IPP_PROFILE_DIR"], engine)
