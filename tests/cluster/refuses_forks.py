"""Makes the process that imports it, a test's fork server, fail to fork while a file is there."""

import os
from pathlib import Path

FILE = "TESTS_REFUSE_FORKS"  # a variable of the environment with the path
fork = os.fork


def fork_if_allowed() -> int:
    if Path(os.environ[FILE]).exists():
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()


os.fork = fork_if_allowed
