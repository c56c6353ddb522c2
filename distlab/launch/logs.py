"""What the engines of a fork server write, and what is left of it when one has ended.

Runs in the process of fork_server.py, and in its children, which write.
"""

import contextlib
import os

LOG_BYTES = 1 << 14  # of the end of an engine's log, reported with its end


def log_of(engine: int) -> str:
    """Path of the log of an engine."""
    return _path_of(f"fork-{engine}.log")


def stderr_of(engine: int) -> str:
    """Path of the file with what an engine has written to stderr past Python."""
    return _path_of(f"stderr-{engine}.log")


def write_into_log(engine: int) -> None:
    """Have this process, which is to be an engine, write stdout and stderr into the engine's log.

    The file is emptied: lines of an earlier process would mislead.
    """
    log = os.open(log_of(engine), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def open_stderr(engine: int) -> int:
    """Open the file for what an engine writes to stderr past Python, emptied."""
    return os.open(stderr_of(engine), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)


def _path_of(name: str) -> str:
    folder = os.environ["IPP_PROFILE_DIR"]
    return os.path.join(folder, "log", name)


def tail_of(path: str) -> bytes:
    """The end of a file; nothing if there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        return file.read()
    return b""


def fault_of(engine: int) -> str:
    """What an engine was doing if a fault in compiled code ended it."""
    # imported here, because a server whose engines all live does not need it
    from distlab.wire import faults

    return faults.pop_learners_part(os.environ["IPP_PROFILE_DIR"], engine)
