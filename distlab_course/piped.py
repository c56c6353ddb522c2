"""The two ends of a program that this process writes to and reads from.

Called in the notebook's kernel, and in processes that mark.
"""

import subprocess
from typing import IO, AnyStr


def pipes_of(process: subprocess.Popen[AnyStr]) -> tuple[IO[AnyStr], IO[AnyStr]]:
    """The pipes to a process's stdin and from its stdout.

    Raises:
        ValueError: it was started without pipes.
    """
    if process.stdin is None or process.stdout is None:
        raise ValueError("stdin and stdout of the process must be pipes")
    return process.stdin, process.stdout
