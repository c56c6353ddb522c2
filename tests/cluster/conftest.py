"""Real ranks for the tests, and the count of processes that they must not leave behind."""

import contextlib
import os
import time

import psutil
import pytest

import distlab
from distlab.launch import reaper


def processes_of(owner: str) -> list[psutil.Process]:
    """Living processes of clusters whose tag begins with `owner`; one that ends while we look is not living."""
    found = []
    for process in reaper.find(""):
        with contextlib.suppress(psutil.Error, KeyError):
            if process.environ()[reaper.TAG].startswith(owner) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def our_processes() -> list[psutil.Process]:
    """Living processes of clusters that this test process started, and its children."""
    tagged = processes_of(reaper.owner_of_this_process())
    children = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                children.append(process)
    return tagged + [process for process in children if process not in tagged]


def wait_until_gone(count) -> list:
    """What `count()` still returns after at most 20 s; an empty list as soon as nothing is left."""
    deadline = time.monotonic() + 20
    while (left := count()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.fixture(autouse=True, scope="module")
def nothing_left():
    """After the tests of a module, no process of ours is left."""
    before = {p.pid for p in our_processes()}
    yield
    assert wait_until_gone(lambda: [p for p in our_processes() if p.pid not in before]) == []


@pytest.fixture(scope="module")
def cluster(nothing_left):
    """Four ranks, shared by the tests of a module; each test leaves them usable, and proves it.

    Their timeout is long: on a busy machine, being freed must be told apart from it.
    """
    with distlab.Cluster(4, timeout=20) as four:
        yield four


@pytest.fixture(scope="module")
def three(nothing_left):
    """Three ranks, shared by the tests of a module."""
    with distlab.Cluster(3, timeout=60) as cluster:
        yield cluster


@pytest.fixture
def quick_watch(monkeypatch):
    """A deadlock is told as soon as nothing has moved for 0.2 s: what is none has to show it in less than a second."""
    monkeypatch.setattr("distlab.client.deadlock_watch.UNMOVED_SECONDS", 0.2)
    monkeypatch.setattr("distlab.client.execution.TICK_SECONDS", 0.1)


@pytest.fixture
def usable(cluster):
    """The shared cluster, which must still add up its ranks after the test."""
    yield cluster
    assert cluster.run(sum_of_ranks) == [6.0] * 4


def sum_of_ranks(rank, world_size):
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    return tensor.item()


def pid_on_rank(rank, world_size):
    return os.getpid()
