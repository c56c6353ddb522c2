"""A learner's own stores: a key that nobody writes is a message that nobody sends."""

import pytest
import torch.distributed as dist

import distlab
from distlab.wire.rendezvous import listen
from tests.cluster.conftest import pid_on_rank
from tests.refused import raised

CLUSTER = {"n": 3, "timeout": 20}
pytestmark = pytest.mark.usefixtures("quick_watch")


@pytest.fixture
def opened(usable):
    """Every rank has `store`, a client of the one that rank 0 serves."""
    usable.run(open_store, free_port())
    pids = usable.run(pid_on_rank)
    yield
    usable.run(open_store, free_port())
    assert usable.run(use) == [True] * 3
    assert usable.run(pid_on_rank) == pids


def free_port():
    with listen() as free:
        return free.getsockname()[1]


def open_store(rank, world_size, port):
    import __main__

    __main__.store = dist.TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)


def use(rank, world_size):
    store.set(f"of rank {rank}", "there")  # noqa: F821 - the name of the rank
    return store.get(f"of rank {(rank + 1) % world_size}") == b"there"  # noqa: F821


def wait_for_a_misspelt_key(rank, world_size):
    if rank == 1:
        store.wait(["everybody is hree"])  # noqa: F821


def fail_while_others_wait(rank, world_size):
    if rank == 1:
        raise ValueError("rank 1 writes nothing")
    store.get("from rank 1")  # noqa: F821


@pytest.mark.usefixtures("opened")
def test_a_key_that_nobody_writes(usable):
    """The report says which rank waits at which line."""
    said = str(raised(distlab.RankTimeout, usable.run, wait_for_a_misspelt_key, timeout=1))
    assert "rank 1         store.wait(['everybody is hree'])  test_stores.py:" in said
    assert "Variables are kept" in said


@pytest.mark.usefixtures("opened")
def test_a_rank_that_raises_frees_those_that_wait_for_its_key(usable):
    error = raised(distlab.RankError, usable.run, fail_while_others_wait)
    assert [failure.rank for failure in error.failures if not failure.consequence] == [1]
    assert "ranks 0 and 2 waited in communication and could not go on" in str(error)


def serve_on_every_rank(rank, world_size, port):
    dist.TCPStore("127.0.0.1", port, world_size, is_master=True)


def join_what_nobody_serves(rank, world_size, port):
    if rank == 0:
        raise ValueError("cannot serve")
    dist.TCPStore("127.0.0.1", port, world_size, is_master=False)


@pytest.mark.parametrize("mistake", [serve_on_every_rank, join_what_nobody_serves])
def test_the_next_try_may_use_the_same_port(usable, mistake):
    """Neither a server nor a client is left of the wait that was freed."""
    port = free_port()
    raised(distlab.RankError, usable.run, mistake, port)
    usable.run(open_store, port)
    assert usable.run(use) == [True] * 3
