"""Interrupts and time limits that come while a rank imports a module."""

import os
import signal
import threading

import pytest

import distlab
from tests.cluster.conftest import pid_on_rank
from tests.refused import raised

SLOW = "import sys, time\nsys.begun = getattr(sys, 'begun', 0) + 1\ntime.sleep({seconds})\n"
WAITS = "import torch, torch.distributed as dist\ndist.recv(torch.zeros(1), src=1 - dist.get_rank())\n"


CLUSTER = {"n": 2, "timeout": 20}


@pytest.fixture
def kept(usable):
    """The two ranks, which keep their processes and work after the test."""
    before = usable.run(pid_on_rank)
    yield usable
    assert usable.run(pid_on_rank) == before


def imports(rank, world_size, folder, name, ends=False):
    """Import a module, and either go on without an end, or say how often its import has begun."""
    import importlib
    import sys
    import time

    sys.path.insert(0, folder)
    try:
        importlib.import_module(name)
    finally:
        sys.path.remove(folder)
    while not ends:
        time.sleep(0.1)
    return sys.__dict__.pop("begun")


def in_folder(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return str(folder), name


@pytest.mark.parametrize("how", ["timeout", "signal"])
def test_the_import_of_a_library_is_not_torn(kept, tmp_path, how):
    """The ranks are interrupted when it is whole: it is there afterwards, and was imported only once."""
    module = in_folder(tmp_path / "site-packages", f"library_{how}", SLOW.format(seconds=4))
    timers = [threading.Timer(2, os.kill, (pid, signal.SIGINT)) for pid in kept.run(pid_on_rank) if how == "signal"]
    for timer in timers:
        timer.start()
    kind, limit = (distlab.RankError, None) if timers else (distlab.RankTimeout, 2)
    said = str(raised(kind, kept.run, imports, *module, timeout=limit))
    assert ("KeyboardInterrupt" if timers else "Variables are kept") in said
    assert kept.run(imports, *module, ends=True) == [1, 1]


@pytest.mark.parametrize(
    ("folder", "name", "text"),
    [("", "own_loop", "while True:\n    pass\n"), ("", "own_wait", WAITS), ("site-packages", "library_wait", WAITS)],
)
def test_a_module_that_never_ends_is_freed(kept, tmp_path, folder, name, text):
    """The learner's own is interrupted like a cell; in a library, a wait in gloo is ended where it is."""
    module = in_folder(tmp_path / folder, name, text)
    error = raised((distlab.RankTimeout, distlab.DeadlockError), kept.run, imports, *module, timeout=2)
    assert "Variables are kept" in str(error)


def test_an_import_without_an_end_costs_the_rank(usable, tmp_path, monkeypatch):
    """A library that is never whole is not waited for without a limit."""
    monkeypatch.setattr("distlab.wire.seconds.GIVE_UP_LATE", 3.0)
    module = in_folder(tmp_path / "site-packages", "library_without_end", SLOW.format(seconds=60))
    error = raised(distlab.RankTimeout, usable.run, imports, *module, timeout=2)
    assert "Rank 1 could not be freed: a new process took its place" in str(error)
