"""What a machine lets a cluster have; too little is reported before it starts."""

import math
import resource
import time
from types import SimpleNamespace

import psutil
import pytest

from distlab import machine
from distlab.launch import reaper, this_host
from distlab.launch.controller import SoonCalmMonitor
from tests.processes import python
from tests.refused import refused

ULIMIT = "For more, run `ulimit -n 4096` in the shell that starts Python or Jupyter."
MEMORY = "A rank takes about 190 MB: close other programs."


@pytest.mark.parametrize(
    ("files", "n", "engines", "words"),
    [
        (1024, 100, "fork", ""),
        (
            1024,
            10_000,
            "local",
            f"at most 42 on this machine, got 10000. It has 8 GB of free memory. {MEMORY}",
        ),
        (
            128,
            40,
            "fork",
            f"at most 4 on this machine, got 40. A process may open 128 files here. {ULIMIT}",
        ),
    ],
)
def test_what_a_machine_allows(monkeypatch, files, n, engines, words):
    """The largest cluster that fits is named, and how to get more."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8e9))
    limits = {
        resource.RLIMIT_NOFILE: (files, files),
        resource.RLIMIT_NPROC: (resource.RLIM_INFINITY,) * 2,
    }
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    if words:
        assert str(refused(this_host.check_ranks_fit, n, engines)) == f"n must be {words}"
    else:
        this_host.check_ranks_fit(n, engines)


def test_a_fresh_rank_takes_the_memory_of_a_whole_python(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1e9))
    this_host.check_ranks_fit(8, "fork")
    message = str(refused(this_host.check_ranks_fit, 8, "fork", fresh=True))
    assert message.startswith("n must be at most 5 on this machine, got 8. It has 1 GB")
    assert "A rank takes about 190 MB" in message


ULIMIT_U = "End some, or for more run `ulimit -u 4096` in the shell that starts Python or Jupyter."
CONTAINER = (
    "End some, or for more start the container with a higher limit, such as docker run "
    "--pids-limit 1024."
)


@pytest.mark.parametrize(
    ("limit", "n", "engines", "own", "words"),
    [
        (None, 100, "fork", 0, ""),
        (machine.TaskLimit(100, 20, True), 4, "fork", 0, ""),
        (machine.TaskLimit(100, 80, True), 4, "fork", 60, ""),
        (
            *(machine.TaskLimit(100, 80, True), 4, "fork", 0),
            "at most 0 on this machine, got 4. "
            f"You may run 100 processes and threads here, and 80 run already. {ULIMIT_U}",
        ),
        (
            *(machine.TaskLimit(70, 2, False), 4, "fork", 0),
            "at most 3 on this machine, got 4. "
            f"This container may run 70 processes and threads here, and 2 run already. {CONTAINER}",
        ),
        (
            *(machine.TaskLimit(70, 2, False), 3, "local", 0),
            "at most 2 on this machine, got 3. "
            f"This container may run 70 processes and threads here, and 2 run already. {CONTAINER}",
        ),
    ],
)
def test_a_machine_that_allows_few_processes(monkeypatch, limit, n, engines, own, words):
    """What the cluster before has is not counted: it ends, or the new one takes it."""
    monkeypatch.setattr(machine, "tasks", lambda: limit)
    monkeypatch.setattr(
        reaper, "of_notebook", lambda pid: [SimpleNamespace(num_threads=lambda: own)]
    )
    if words:
        assert str(refused(this_host.check_ranks_fit, n, engines)) == f"n must be {words}"
    else:
        this_host.check_ranks_fit(n, engines)


def test_a_real_machine_that_lacks_something():
    """The limit is really set: Cluster reports it at once."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    code = (
        "import distlab\n"
        f"{limit}\n"
        "try: distlab.Cluster(2)\n"
        "except distlab.ArgumentError as error: print(error)"
    )
    assert "A process may open 64 files here." in python("-c", code, timeout=30).stdout


@pytest.mark.parametrize(("calm_in", "failed"), [(60, []), (-1, [b"engine"])])
def test_missed_heartbeats_count_only_while_the_heart_is_calm(calm_in, failed):
    """An engine may be silent for as many seconds as beats may be missed."""
    monitor = SoonCalmMonitor(max_heartmonitor_misses=0)
    monitor._calm_at = time.monotonic() + calm_in
    assert monitor._check_missed({b"engine"}, {}, {b"engine"})[0] == failed


def test_an_engine_is_registered_with_its_first_answer():
    """Not at the beat after it; when all have answered, the monitor is calm."""
    monitor, told = SoonCalmMonitor(lifetime=1.5), []
    monitor.handle_new_hearts = lambda new: (told.append(new), monitor.hearts.update(new))
    monitor._coming, monitor._calm_at = 2, math.inf
    for engine, calm in ((b"first", False), (b"first", False), (b"second", True)):
        monitor.handle_pong([engine, b"1.5"])
        assert (monitor._calm_at <= time.monotonic()) == calm
    assert told == [{b"first"}, {b"second"}]
