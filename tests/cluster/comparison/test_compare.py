"""`distlab.compare`: worlds of their own, and what is as before when it has ended, well or not."""

import os
import random
import signal
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import distlab
from distlab.notebook.ranks import Ranks
from tests.cluster.conftest import sum_of_ranks
from tests.refused import raised, refused

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def train(rank, world_size, wrong=""):
    """Three steps of a small model on 16 rows, whole or in parts."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    rows = torch.randn(16, 4)
    targets = torch.randn(16, 1)
    mine = slice(rank, None, world_size)
    net = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        optimizer.zero_grad()
        called = net.module if wrong == "past DDP" else net
        loss = (called(rows[mine]) - targets[mine]).square().mean()
        if wrong == "divided":
            loss = loss / world_size
        loss.backward()
        optimizer.step()
        print("step", step, "on rank", rank)


def noted(world_size):
    """What the runs of a program on this rank have noted: the newest of each world."""
    return vars(sys.modules["__main__"]).setdefault("noted", {}).setdefault(world_size, {})


def notes_of_rank(rank, world_size):
    return vars(sys.modules["__main__"]).pop("noted", {})


# --- the verdict ---


@pytest.mark.parametrize("worlds", [(1, 4), (1, 2, 4), [4, 2]])
def test_a_right_program_is_the_same(usable, worlds, capsys):
    """In one process, on the smallest world given, and nothing of it is printed."""
    found = distlab.compare(train, worlds)
    assert found.same
    assert found
    one = "one process" if 1 in worlds else "on 2 ranks"
    assert repr(found).startswith(f"The same as {one}: 3 steps, 4 parameters. The relative ")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("past DDP", "nothing averaged the gradients"),
        ("divided", "0.25 = 1 / ranks for every parameter"),
    ],
)
def test_a_wrong_program_is_named(usable, wrong, words):
    """With its line; arguments of the program follow, or have names."""
    by_place = distlab.compare(train, (1, 4), wrong)
    by_name = distlab.compare(train, worlds=(1, 4), wrong=wrong)
    for found in (by_place, by_name):
        assert not found
        assert words in " ".join(repr(found).split())
        assert "test_compare.py:" in repr(found)


def wrong_at_first(rank, world_size):
    """What a race may do: the first run of several ranks is another one, the second is right."""
    names = vars(sys.modules["__main__"])
    is_first = world_size > 1 and "ran_before" not in names
    if world_size > 1:
        names["ran_before"] = True
    train(rank, world_size, "divided" if is_first else "")


def forget_runs(rank, world_size):
    vars(sys.modules["__main__"]).pop("ran_before", None)


def test_a_mistake_that_comes_and_goes_is_not_called_the_same(usable):
    usable.run(forget_runs)
    found = distlab.compare(wrong_at_first, (1, 4))
    assert not found.same
    words = " ".join(repr(found).split())
    assert "on 4 ranks: the ranks do not do the same twice." in words
    assert "0.25 = 1 / ranks for every parameter" in words
    assert distlab.compare(wrong_at_first, (1, 4)).same


# --- a world of its own ---


def look_around(rank, world_size):
    """What a program of torchrun's sees: its group, variables, meshes, DDP, FSDP2, subgroups."""
    seen = noted(world_size)
    seen["variables"] = [int(os.environ[name]) for name in VARIABLES]
    seen["group"] = (dist.get_rank(), dist.get_world_size(), sum_of_ranks(rank, world_size))
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("all",))
    seen["mesh"] = (mesh.size(), mesh.get_local_rank("all"))
    part = dist.new_group(range(world_size - 1, world_size))
    seen["part"] = dist.get_rank(part) if rank == world_size - 1 else None
    for wrap in (DistributedDataParallel, lambda module: fully_shard(module, mesh=mesh)):
        torch.manual_seed(0)
        net = wrap(nn.Linear(2, 2, bias=False))
        net(torch.full((1, 2), float(rank))).sum().backward()
    grad = next(net.parameters()).grad.full_tensor()
    seen["mean"] = grad[0, 0].item()


def test_a_smaller_world_is_as_torchrun_would_make_it(usable):
    """Rank, size, variables, meshes, wrappers and subgroups are those of the small world."""
    distlab.compare(look_around, (1, 2, 4))
    notes = usable.run(notes_of_rank)
    assert [sorted(seen) for seen in notes] == [[1, 2, 4], [2, 4], [4], [4]]
    for rank, seen in enumerate(notes):
        for n, found in seen.items():
            assert found == {
                "variables": [rank, n, rank, n],
                "group": (rank, n, n * (n - 1) / 2),
                "mesh": (n, rank),
                "part": 0 if rank == n - 1 else None,
                "mean": (n - 1) / 2,
            }


def begin_by_itself(rank, world_size):
    """A script's own beginning and end."""
    dist.init_process_group("gloo")
    noted(world_size)["total"] = sum_of_ranks(rank, world_size)
    dist.barrier()
    dist.destroy_process_group()


def destroy_only(rank, world_size):
    noted(world_size)["total"] = sum_of_ranks(rank, world_size)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("program", [begin_by_itself, destroy_only])
def test_a_program_may_make_and_destroy_its_group(usable, program):
    """As it does under torchrun: the address is in the environment, another one in each run."""
    distlab.compare(program, (1, 2, 4))
    notes = usable.run(notes_of_rank)
    for seen in notes:
        for n, found in seen.items():
            assert found == {"total": n * (n - 1) / 2}


def gather_with_gradient(rank, world_size):
    """torch evaluates these functions' default group when it imports them: in the first world."""
    from torch.distributed.nn import functional

    parts = functional.all_gather(torch.full((1,), float(rank), requires_grad=True))
    noted(world_size)["total"] = sum(parts).item()


def test_functions_of_torch_take_the_group_of_now(usable):
    distlab.compare(gather_with_gradient, (1, 2, 4))
    for seen in usable.run(notes_of_rank):
        assert seen == {n: {"total": n * (n - 1) / 2} for n in seen}


def warn(rank, world_size):
    warnings.warn(f"in a world of {world_size}", stacklevel=1)


def test_a_warning_is_shown_once_for_each_world(usable, capsys):
    """And not by the runs that only ask what rounding changes."""
    distlab.compare(warn, (1, 4))
    shown = capsys.readouterr().out
    assert [shown.count(f"UserWarning: in a world of {n}") for n in (1, 4)] == [1, 1]


def change_everything(rank, world_size):
    """What a careless program leaves behind in its process."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    os.environ["WORLD_SIZE"] = "7"
    os.environ["LEFT_BEHIND"] = "1"


def surroundings(rank, world_size):
    numbers = (random.random(), np.random.rand(), torch.rand(1).item())
    names = (*VARIABLES, "MASTER_ADDR", "LEFT_BEHIND")
    variables = [os.environ.get(name) for name in names]
    return numbers, variables, torch.get_default_dtype(), torch.is_grad_enabled()


def seed_all(rank, world_size):
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)


def test_a_program_leaves_nothing_behind(usable):
    """Random numbers go on as if nothing had run; variables and defaults are as before."""
    usable.run(seed_all)
    expected = usable.run(surroundings)
    usable.run(seed_all)
    distlab.compare(change_everything, (1, 2, 4))
    assert usable.run(surroundings) == expected


def set_deterministic(rank, world_size, deterministic, only_warns):
    torch.use_deterministic_algorithms(deterministic, warn_only=only_warns)


def is_deterministic(rank, world_size):
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), only_warns


def be_deterministic(rank, world_size):
    torch.use_deterministic_algorithms(True)


def test_deterministic_algorithms_that_only_warn_do_so_afterwards(usable):
    usable.run(set_deterministic, True, True)
    try:
        distlab.compare(be_deterministic, (1, 2))
        assert usable.run(is_deterministic) == [(True, True)] * 4
    finally:
        usable.run(set_deterministic, False, False)


# --- afterwards ---


def whole(rank, world_size):
    """A variable of the rank, and the sum over the whole group."""
    kept = vars(sys.modules["__main__"]).get("kept")
    return kept, world_size, os.environ["WORLD_SIZE"], sum_of_ranks(rank, world_size)


@pytest.fixture
def kept(usable):
    """The shared cluster, whose ranks have a variable, and a function that looks for it."""
    usable.push({"kept": "here"})

    def look(new=()):
        for rank, found in enumerate(usable.run(whole)):
            variable = None if rank in new else "here"
            assert found == (variable, 4, "4", 6.0)

    return look


def fail(rank, world_size, how, n):
    print("printed before")
    if world_size != n:
        return
    if how == "one rank raises" and rank == n - 1:
        raise ValueError("only here")
    if how == "all raise":
        raise ValueError("everywhere")
    if how == "a rank dies" and rank == n - 1:
        os._exit(3)
    if how == "deadlock" and rank == 0:
        dist.recv(torch.ones(1), src=n - 1)
    if how == "too late":
        time.sleep(100)
    dist.barrier()


@pytest.mark.parametrize(
    ("n", "where"), [(2, "in the world of 2 ranks"), (4, "in the world of 4 ranks")]
)
@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("one rank raises", distlab.RankError, "raised ValueError: only here"),
        ("all raise", distlab.RankError, "raised ValueError: everywhere"),
        ("a rank dies", distlab.RankDied, "ended with exit status 3"),
        ("deadlock", distlab.DeadlockError, "rank 0 in recv for rank"),
        ("too late", distlab.RankTimeout, "did not come back within 0.5 s"),
    ],
)
def test_a_failure_says_in_which_world_and_the_group_is_whole_again(
    kept, quick_watch, capsys, how, kind, words, n, where
):
    timeout = 0.5 if how == "too late" else None
    error = raised(kind, distlab.compare, fail, (1, 2, 4), how, n, timeout=timeout)
    first, rest = str(error).split("\n", 1)
    assert first == f"fail failed {where}:"
    assert words in rest
    assert "test_compare.py:" in rest or how == "a rank dies"
    if how != "a rank dies":
        assert "printed before" in capsys.readouterr().out
    kept(new=[n - 1] if how == "a rank dies" else [])


def test_a_failure_in_one_process_says_so(kept):
    error = raised(distlab.RankError, distlab.compare, fail, (1, 4), "all raise", 1)
    words = "fail failed in one process:\nrank 0 raised ValueError: everywhere\n"
    assert str(error).startswith(words)
    kept()


def sleep_in_world(rank, world_size, n):
    if world_size == n:
        time.sleep(100)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_an_interrupt_says_in_which_world(kept, python_handles_sigint, n):
    """The sleeping ranks end, and the group is whole again."""
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    error = raised(KeyboardInterrupt, distlab.compare, sleep_in_world, (1, 2, 4), n)
    where = "in one process" if n == 1 else f"in the world of {n} ranks"
    assert str(error).startswith(f"sleep_in_world was interrupted {where}:\n")
    kept()


@pytest.mark.parametrize("turn", [1, 2, 4, 7])
def test_an_interrupt_between_two_runs_leaves_a_whole_group(
    kept, monkeypatch, python_handles_sigint, turn
):
    """It comes where a world has just been built."""
    own = Ranks.rebuild
    built = []

    def rebuild(self, *args, **kwargs):
        ended = own(self, *args, **kwargs)
        built.append(kwargs.get("world"))
        if len(built) == turn:
            signal.raise_signal(signal.SIGINT)
        return ended

    with monkeypatch.context() as patch:
        patch.setattr(Ranks, "rebuild", rebuild)
        raised(KeyboardInterrupt, distlab.compare, train, (1, 2, 4))
    assert built == [None, 1, 1, 1, 2, 4, None][:turn]
    kept()


def test_groups_of_before_are_gone_and_it_is_said(kept, usable, capsys):
    """A rank that is in no world but the last one counts as well."""
    usable.run(lambda rank, world_size: dist.new_group([2, 3]) and None)
    distlab.compare(train, (1, 2))
    words = "Groups made with dist.new_group, and device meshes, are gone: make them again.\n"
    assert capsys.readouterr().out == words
    kept()


def test_a_cluster_must_be_large_enough(usable):
    words = (
        "worlds must be of at most 4 ranks, as the cluster has, got 8. "
        "Call distlab.compare(train, (1, 2, 4)), or distlab.Cluster(8) first."
    )
    assert str(refused(distlab.compare, train, (1, 8))) == words


def test_what_cannot_be_sent_is_refused(kept):
    """Before anything runs, with the variable that cannot travel."""
    lock = threading.Lock()

    def locked(rank, world_size):
        with lock:
            return None

    error = raised(distlab.errors.SerializationError, distlab.compare, locked, (1, 4))
    assert "It uses lock, which is the notebook's." in str(error)
    raised(distlab.errors.SerializationError, distlab.compare, train, (1, 4), lock)
    kept()


# --- clusters of other kinds ---


def test_without_a_cluster_one_is_started_and_stopped(shared):
    if distlab.Cluster.current is not None:
        distlab.Cluster.current.stop()
    assert distlab.compare(train, (1, 2))
    assert distlab.Cluster.current is None
    error = raised(distlab.RankError, distlab.compare, fail, (1, 2), "all raise", 2)
    assert "process group" not in str(error)
    assert distlab.Cluster.current is None
    error = raised(distlab.ArgumentError, distlab.compare, train, (1, 99_999))
    assert str(error).startswith("The largest of worlds needs a cluster of 99999 ranks. n must be")


def test_on_simulated_machines(shared):
    """The program does the same there; it is the time that is virtual."""
    inside = distlab.Link("2 us", "300 GB/s")
    between = distlab.Link("10 us", "12.5 GB/s")
    network = distlab.Network(hosts=[2, 2], inside=inside, between=between)
    with shared.made(n=4, network=network) as cluster:
        assert distlab.compare(train, (1, 2, 4))
        assert not distlab.compare(train, (1, 4), "past DDP")
        assert cluster.run(sum_of_ranks) == [6.0] * 4
        assert cluster.clock() > 0
