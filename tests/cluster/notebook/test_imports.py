"""Interrupts and time limits that come while a rank imports a module."""

import importlib
import sys
import time

import pytest

import distlab
from tests.cluster.conftest import pid_on_rank
from tests.refused import raised

CLUSTER = {"n": 2, "timeout": 60}
pytestmark = pytest.mark.usefixtures("quick_watch")
SLOW = "import sys, time\nsys.begun = getattr(sys, 'begun', 0) + 1\ntime.sleep({seconds})\n"
WAITS = (
    "import torch, torch.distributed as dist\ndist.recv(torch.zeros(1), src=1 - dist.get_rank())\n"
)


def imports(rank, world_size, folder, name, ends=False):
    """Import a module, and go on without an end, or return how often its import has begun."""
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


def test_the_import_of_a_library_is_not_torn(usable, tmp_path):
    """The ranks are interrupted when it is whole: it was imported only once."""
    module = in_folder(tmp_path / "site-packages", "slow_library", SLOW.format(seconds=3))
    pids = usable.run(pid_on_rank)
    assert "Variables are kept" in str(
        raised(distlab.RankTimeout, usable.run, imports, *module, timeout=1)
    )
    assert usable.run(imports, *module, ends=True) == [1, 1]
    assert usable.run(pid_on_rank) == pids


@pytest.mark.parametrize(
    ("folder", "text"), [("", "while True:\n    pass\n"), ("site-packages", WAITS)]
)
def test_a_module_that_never_ends_is_freed(usable, tmp_path, folder, text):
    """A learner's own is interrupted like a cell; in a library, a wait in gloo is ended."""
    module = in_folder(tmp_path / folder, f"never_ends_{len(text)}", text)
    error = raised(
        (distlab.RankTimeout, distlab.DeadlockError), usable.run, imports, *module, timeout=1
    )
    assert "Variables are kept" in str(error)


def test_an_import_without_an_end_costs_the_rank(usable, tmp_path, monkeypatch):
    """A library that is never whole is not waited for without a limit."""
    monkeypatch.setattr("distlab.notebook.seconds.GIVE_UP_LATE", 1.0)
    module = in_folder(tmp_path / "site-packages", "library_without_end", SLOW.format(seconds=60))
    error = raised(distlab.RankTimeout, usable.run, imports, *module, timeout=0.5)
    assert "Rank 1 could not be freed: a new process took its place" in str(error)
