"""Processes that tests have started, found by a mark in their environment, and the wait for their end."""

import contextlib
import time

import psutil


def marked(name: str, value: str) -> list[psutil.Process]:
    """Living processes in whose environment `name` begins with `value`; one that ends while we look is not living."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name, "").startswith(value) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until_gone(count, patience: float = 20) -> list:
    """What `count()` still returns after at most so many seconds; an empty list as soon as nothing is left."""
    deadline = time.monotonic() + patience
    while (left := count()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
