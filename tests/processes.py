"""Processes that tests start: a Python of its own, marked ones, and the wait for their end."""

import contextlib
import os
import subprocess
import sys
import time

import psutil

from distlab.launch import reaper

# then the script
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def python(*arguments, variables=None, **options) -> subprocess.CompletedProcess:
    """What a Python of its own has written; `variables` are added to its environment."""
    given = {
        "capture_output": True,
        "text": True,
        "timeout": 200,
        "env": {**os.environ, **(variables or {})},
    }
    return subprocess.run([sys.executable, *arguments], **{**given, **options})


def python_that_goes_on(code) -> subprocess.Popen:
    """A Python of its own that runs this code, with pipes to and from it."""
    return subprocess.Popen(
        [sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def marked(name: str, value: str) -> list[psutil.Process]:
    """Living processes in whose environment `name` begins with `value`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            is_marked = name in environment and environment[name].startswith(value)
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until_gone(count, patience: float = 60) -> list:
    """What `count()` still returns at the limit; an empty list as soon as nothing is left."""
    deadline = time.monotonic() + patience
    while (left := count()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def until(condition) -> None:
    """Wait until it is true, a minute at most."""
    assert not wait_until_gone(lambda: not condition())


def controller_of(cluster) -> psutil.Process:
    """ipyparallel's controller: the process that listens where the client is connected."""
    tag, port = (
        cluster.ranks._processes.tag,
        cluster.client._query_socket.last_endpoint.decode().rpartition(":")[2],
    )
    for process in marked(reaper.TAG, tag):
        if any(
            c.laddr.port == int(port) and c.status == psutil.CONN_LISTEN
            for c in process.net_connections()
        ):
            return process
    raise AssertionError(f"no process listens on port {port}")
