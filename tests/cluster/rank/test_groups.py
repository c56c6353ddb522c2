"""Groups that ranks make differently: the first rank does not matter, and none is lost."""

import multiprocessing
import time
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import distlab
from distlab.rank import groups
from tests.cluster.conftest import pid_on_rank, px, sum_of_ranks
from tests.refused import raised

CLUSTER = {"n": 3, "timeout": 60}
pytestmark = pytest.mark.usefixtures("quick_watch")


@pytest.fixture
def unharmed(usable):
    """The same processes go on, with their variables."""
    usable.push({"kept": 7})
    pids = usable.run(pid_on_rank)
    yield usable
    assert usable.pull("kept") == [7] * 3
    assert usable.run(pid_on_rank) == pids


def pairs_that_share_a_rank(rank, world_size, first):
    """Rank 2 makes its group before the others do, or after they have made theirs."""
    store = dist.distributed_c10d._get_default_store()
    if (rank == 2) != (first == 2):
        store.wait(["distlab/new_group/1"])
    dist.new_group([0, 1] if rank < 2 else [1, 2])


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("first", [0, 2])
def test_the_report_is_the_same_whichever_rank_is_first(unharmed, first, check):
    """Both groups and their lines, also where some ranks went on, or one has raised."""
    line = f"test_groups.py:{pairs_that_share_a_rank.__code__.co_firstlineno + 5}"
    assert str(
        raised(distlab.RankError, unharmed.run, pairs_that_share_a_rank, first, check=check)
    ) == (
        "some ranks raised MismatchError: The ranks do not make the same group in their "
        f"new_group call number 1: rank 2 makes one of ranks 1-2 ({line}), ranks 0-1 make one "
        f"of ranks 0-1 ({line}), but every rank must call new_group, even for a group that it "
        "is not in, and in the same order.\n"
        f"  ranks 0-2   {line} in pairs_that_share_a_rank   "
        "dist.new_group([0, 1] if rank < 2 else [1, 2])\n"
        "The process group is rebuilt and variables are kept: "
        "change the cell and run it again. "
        "Groups made with dist.new_group, and device meshes, are gone: make them again."
    )


def test_groups_over_several_cells(unharmed):
    """The next group finds it out, with the line of the earlier cell."""
    px(unharmed, "group = dist.new_group([0, 1])")
    px(
        unharmed,
        "other = dist.new_group([0, 2])\nassert (rank != 1) == (dist.get_rank(other) >= 0)",
    )
    px(unharmed, "if rank < 2:\n    alone = dist.new_group([0, 1])")
    text = str(raised(distlab.RankError, px, unharmed, "dist.new_group([1, 2])"))
    assert text.startswith(
        "some ranks raised MismatchError: The ranks do not make the same group in their "
        "new_group call number 3: rank 2 makes one of ranks 1-2 (line 2), ranks 0-1 make one "
        "of ranks 0-1 (line 3), but every rank must call"
    )
    assert unharmed.run(sum_of_ranks) == [3] * 3


def wait_in_new_group(rank, world_size):
    while rank == 0:
        pass
    dist.new_group()


def test_ranks_that_wait_in_new_group_are_freed(unharmed):
    """For a rank that computes: nothing can be proven, and nothing is lost."""
    text = str(raised(distlab.RankTimeout, unharmed.run, wait_in_new_group, timeout=1))
    assert "ranks 1-2  new_group(group of ranks 0-2)  test_groups.py:" in text
    assert "Variables are kept" in text


def fail_before_new_group(rank, world_size):
    if rank == 2:
        raise ValueError("no groups here")
    dist.new_group()


def test_a_rank_that_raises_frees_those_in_new_group(unharmed):
    error = raised(distlab.RankError, unharmed.run, fail_before_new_group)
    assert str(error).startswith("rank 2 raised ValueError: no groups here\n")
    assert "ranks 0-1 waited in communication and could not go on" in str(error)


def fail_before_a_group_is_built(rank, world_size):
    """The others wait in C++ for the last rank's address, in the ranks' own store."""
    if rank == world_size - 1:
        raise ValueError("no groups here")
    store = dist.distributed_c10d._get_default_store()
    dist.ProcessGroupGloo(
        dist.PrefixStore("by hand", store), rank, world_size, timedelta(minutes=5)
    )


def test_the_ranks_meet_again_although_a_freed_wait_holds_the_client_of_their_store(unharmed):
    """It is a wait in C++, on a thread that is left behind, and lasts for minutes."""
    error = raised(distlab.RankError, unharmed.run, fail_before_a_group_is_built)
    assert str(error).startswith("rank 2 raised ValueError: no groups here\n")
    assert "ranks 0-1 waited in communication and could not go on" in str(error)
    assert unharmed.run(sum_of_ranks) == [3] * 3


def go_on_after_a_mistake(rank, world_size):
    """The rank that makes another group goes on without it."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 2:
        store.wait(["go on"])
        try:
            dist.new_group([0, 2])
        except RuntimeError:
            return True
    group = dist.new_group([0, 1])
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    store.set("go on", "")
    return total.item() == 2


def test_a_rank_may_go_on_after_its_mistake(unharmed):
    assert unharmed.run(go_on_after_a_mistake) == [True] * 3


def leave_a_new_group_at_once(rank, world_size):
    """Rank 0 sees late that it has connected the group, which rank 1 has left by then."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        say_connected = groups._say_connected

        def say_late(*args):
            time.sleep(0.5)
            store.set("connected", "")
            say_connected(*args)

        with mock.patch.object(groups, "_say_connected", say_late):
            dist.new_group([0, 1])
        return True
    group = dist.new_group([0, 1])
    if rank == 1:
        dist.destroy_process_group(group)
        return store.check(["connected"])
    return True


def test_a_group_is_left_when_every_member_has_connected_it(unharmed):
    """Else new_group of a slow member would fail, because its peer closed the connection."""
    assert unharmed.run(leave_a_new_group_at_once) == [True] * 3


def leave_a_group_that_is_never_connected(rank, world_size):
    """Rank 0 fails when it connects, and rank 1 leaves the group nevertheless."""
    if rank == 0:
        with mock.patch("distlab.rank.groups._say_connected", side_effect=ValueError("not I")):
            try:
                dist.new_group([0, 1])
            except ValueError:
                return True
    with mock.patch("distlab.rank.groups.CONNECTING_SECONDS", 0.2):
        group = dist.new_group([0, 1])
        if rank == 1:
            dist.destroy_process_group(group)
    return True


def test_a_group_that_a_member_could_not_connect_is_left(unharmed):
    assert unharmed.run(leave_a_group_that_is_never_connected) == [True] * 3


def leave_in_a_child(rank, world_size):
    """A forked process leaves the rank's groups, and the rank uses them afterwards."""
    group = dist.new_group()
    child = multiprocessing.get_context("fork").Process(target=dist.destroy_process_group)
    child.start()
    child.join(20)
    code = child.exitcode
    child.kill()
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    dist.destroy_process_group(group)
    return code, total.item()


def test_a_child_leaves_groups_without_the_connections_of_its_rank(unharmed):
    assert unharmed.run(leave_in_a_child) == [(0, 3)] * 3
