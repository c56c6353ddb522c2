"""Lab 60's names of processes: who started whom, who is connected, and where somebody listens."""

import os

import pytest

from distlab_course import connections
from distlab_course.connections import Connection, Found

HOSTS = {"nodeA": 1, "nodeB": 1}
FIRST_RANK = ("10.0.0.1", 1000)
SECOND_RANK = ("10.0.0.2", 1001)
STORE = ("10.0.0.1", 29400)


@pytest.fixture
def found(monkeypatch):
    """Two ranks on two hosts, below this process; both are connected, rank 1 also to the store."""
    monkeypatch.setattr("distlab_course.connections._notebook_and_below", lambda: iter(()))
    notebook = os.getpid()
    of_first = {
        -10: [],
        -11: [Connection(FIRST_RANK, None), Connection(FIRST_RANK, SECOND_RANK)],
        -12: [Connection(STORE, None)],
    }
    of_second = {
        -20: [],
        -21: [Connection(SECOND_RANK, FIRST_RANK), Connection(("10.0.0.2", 1002), STORE)],
    }
    return [Found(-11, [-10, notebook], of_first), Found(-21, [-20, notebook], of_second)]


def test_each_fork_server_starts_the_ranks_of_its_host(found):
    machines, starts = connections.started(found, HOSTS)
    assert machines == {
        "the notebook's machine": ["notebook", "controller"],
        "nodeA": ["fork server 0", "store", "rank 0"],
        "nodeB": ["fork server 1", "rank 1"],
    }
    assert sorted(starts) == [
        ("fork server 0", "rank 0"),
        ("fork server 0", "store"),
        ("fork server 1", "rank 1"),
        ("notebook", "controller"),
        ("notebook", "fork server 0"),
        ("notebook", "fork server 1"),
    ]


def test_two_processes_with_the_same_ends_are_connected(found):
    pairs = connections.connected(found, HOSTS)
    assert pairs == [("rank 0", "rank 1"), ("rank 1", "store")]
    assert connections.partners(pairs, "rank 1") == ["rank 0", "store"]
    uses = connections.by_use(pairs)
    assert uses["tensors: gloo"] == [("rank 0", "rank 1")]
    assert uses["addresses: the store"] == [("rank 1", "store")]


def test_a_socket_without_another_end_listens(found):
    assert connections.listening(found, HOSTS) == {
        ("rank 0", "10.0.0.1"): 1,
        ("store", "10.0.0.1"): 1,
    }


def test_a_rank_finds_itself_and_its_parent():
    here = connections.processes_here(0, 1)
    assert here.own == os.getpid()
    assert here.above[0] == os.getppid()
    assert here.own in here.sockets
