"""Every init method builds and rebuilds, and a learner's own attempts spoil nothing."""

import os
import statistics
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import distlab
from distlab.rank.cluster_store import connect_to_store
from distlab.wire.rendezvous import INIT_METHODS, listen, serve
from tests.cluster.conftest import sum_of_ranks
from tests.refused import raised

CLUSTER = {"n": 2, "timeout": 20}
AGENT = "TORCHELASTIC_USE_AGENT_STORE"


def variables(rank, world_size):
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
    return {name: os.environ.get(name) for name in names}


def test_every_rank_is_a_client_of_the_store_whatever_the_environment_says(monkeypatch):
    """Rank 0 serves no second store, and a launcher's variables take no part."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", AGENT):
        monkeypatch.delenv(name, raising=False)
    store = serve(listen())
    connect_to_store("127.0.0.1", store.port).set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize("init_method", INIT_METHODS)
def test_many_rebuilds(init_method):
    """Without a stall, on the same processes; env leaves an address for the learner."""
    with distlab.Cluster(2, init_method=f"{init_method}://") as cluster:
        found = cluster.run(variables)
        assert [v["RANK"] for v in found] == ["0", "1"]
        assert {(v["WORLD_SIZE"], v[AGENT]) for v in found} == {("2", os.environ.get(AGENT))}
        address = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
        if init_method == "env":
            address = ("127.0.0.1", str(cluster.ranks._processes.store[1]))
        assert {(v["MASTER_ADDR"], v["MASTER_PORT"]) for v in found} == {address}
        seconds = []
        for _ in range(10):
            began = time.monotonic()
            cluster.heal()
            seconds.append(time.monotonic() - began)
        assert cluster.run(sum_of_ranks) == [1.0, 1.0]
        # a store that asks a DNS which does not answer takes 5 s each time
        assert statistics.median(seconds) < 4.5


def attempt(rank, world_size, arguments):
    """One call of init_process_group: the sum, or that there is no group."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if arguments[rank] is None:
        return "did not come"
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=1), **arguments[rank])
        total = torch.tensor([10.0**rank])
        dist.all_reduce(total)
        return total.item()
    except RuntimeError:
        return "no group"


@pytest.mark.parametrize(
    ("numbers", "world_size", "outcomes"),
    [
        ((0, 1), 2, [11.0, 11.0]),
        # used a number for a group up, on one rank alone
        ((0, None), 2, ["no group", "did not come"]),
        ((0, 1), 3, ["no group", "no group"]),
        ((0, 0), 2, ["no group", "no group"]),
    ],
)
def test_after_an_attempt_by_hand_the_cluster_heals(
    usable, tmp_path, numbers, world_size, outcomes
):
    """A learner's group, or a failed attempt at one, is no obstacle to the cluster's own."""
    given = {"init_method": f"file://{tmp_path}/group", "world_size": world_size}
    found = usable.run(attempt, [None if n is None else {**given, "rank": n} for n in numbers])
    usable.heal()
    assert found == outcomes


def leave(rank, world_size):
    dist.destroy_process_group()


def leave_on_rank_1(rank, world_size):
    if rank == 1:
        dist.destroy_process_group()


def own_group(rank, world_size, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)
    return sum_of_ranks(rank, world_size)


@pytest.mark.parametrize("last_call", [leave, leave_on_rank_1])
def test_a_program_may_end_without_a_group(usable, last_call):
    """The next one has one again, as each program of a learner's begins with one."""
    for _ in range(2):
        usable.run(last_call)
        assert usable.run(sum_of_ranks) == [1.0, 1.0]


def test_the_cluster_s_group_gives_way_to_the_learners_own(usable, tmp_path):
    """Whether it was destroyed or not. A second one of theirs is refused, with advice."""
    usable.run(leave)
    assert usable.run(own_group, tmp_path / "first") == [1.0, 1.0]
    assert usable.run(sum_of_ranks) == [1.0, 1.0]
    error = raised(distlab.RankError, usable.run, own_group, tmp_path / "second")
    assert "ValueError: trying to initialize the default process group twice!" in str(error)
    assert "or call dist.destroy_process_group() first." in str(error)
    usable.heal()
    assert usable.run(own_group, tmp_path / "third") == [1.0, 1.0]


def train_and_end(rank, world_size, path):
    """A group and a model in DDP end at once after a backward pass, again and again."""
    for number in range(20):
        own_group(rank, world_size, f"{path}-{number}")
        replica = DistributedDataParallel(torch.nn.Linear(4, 1))
        replica(torch.ones(1, 4)).sum().backward()
        dist.destroy_process_group()
        del replica


def test_a_group_ends_with_its_model_right_after_a_backward_pass(usable, tmp_path):
    """gloo's threads let go of what the pass has sent, while Python ends the group."""
    usable.run(leave)
    usable.run(train_and_end, tmp_path / "group")
