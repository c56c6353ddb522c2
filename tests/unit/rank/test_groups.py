"""The groups that a rank makes: noted, and compared before one is built."""

from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from distlab.diagnosis.new_groups import differing_groups, words_of_groups
from distlab.errors import MismatchError
from distlab.rank import status
from distlab.rank.groups import NEW_GROUP_KEYS
from distlab.rank.log import LOG
from distlab.wire.codec import to_json
from distlab.wire.messages import NewGroup
from tests.unit.rank.conftest import LIMIT


def noted():
    """The groups that this rank has begun to make."""
    return [(group.name, group.members, group.within) for group in LOG.new_groups]


def has_made(rank, number, *members):
    """Another rank has made a group first."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{NEW_GROUP_KEYS}/{number}", to_json(NewGroup(rank, str(number), members)))


def test_groups_are_noted_by_torchs_name(four):
    """From 1 where every rank makes them; a new world begins again."""
    dist.new_group(np.array([3, 1]))
    dist.new_group([0, 2])
    dist.new_subgroups(2)
    assert noted() == [("1", (1, 3), 1), ("2", (0, 2), 2), ("3", (0, 1), 2), ("4", (2, 3), 3)]
    assert status.summary(0, set(), status.Traffic).made == tuple(LOG.new_groups)
    dist.destroy_process_group()
    dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=4)
    assert noted() == []


def test_a_group_of_its_members_alone_has_no_number(four):
    dist.new_group([1, 3], use_local_synchronization=True)
    dist.new_group([0, 2], use_local_synchronization=True)  # not this rank's
    ((name, members, within),) = noted()
    assert (name.isdigit(), members, within) == (False, (1, 3), 1)


def test_a_group_that_was_refused_is_not_noted(four):
    """It has used up a number, as in torch."""
    with pytest.raises(ValueError, match="device_id"):
        dist.new_group([1], device_id=torch.device("cpu"))
    assert noted() == []


def test_another_group_under_one_number_is_refused_before_it_is_built(four):
    """Whichever rank is first; it stays noted, for the report."""
    has_made(3, 1, 0, 1)
    with pytest.raises(MismatchError) as refused:
        dist.new_group([1, 2])
    number = refused.traceback[0].lineno + 1
    assert str(refused.value) == (
        "The ranks do not make the same group in their new_group call number 1: "
        f"rank 1 makes one of ranks 1-2 (test_groups.py:{number}), rank 3 makes one of ranks "
        "0-1, but every rank must call new_group, even for a group that it is not in, "
        "and in the same order."
    )
    assert noted() == [("1", (1, 2), 1)]
    assert len(dist.distributed_c10d._world.pg_names) == 1


def test_the_same_group_is_built(four):
    has_made(3, 1, 1, 2)
    has_made(3, 2, 3)
    has_made(3, 3, 3)
    assert dist.get_process_group_ranks(dist.new_group([2, 1])) == [1, 2]
    # each rank has a group of its own: no harm
    assert dist.get_process_group_ranks(dist.new_group([1])) == [1]
    with pytest.raises(MismatchError):
        dist.new_group([1, 2])


def test_members_meet_before_gloo_connects_them(alone):
    """Each time, also if the name of a group comes again."""
    for _ in range(2):
        dist.destroy_process_group(dist.new_group([0], use_local_synchronization=True))
    assert sorted(LOG.meetings.values()) == [2]


def test_members_meet_for_the_first_time_in_each_world(alone):
    """Another world has another store, where nobody has come yet."""
    for _ in range(2):
        dist.new_group([0], timeout=timedelta(milliseconds=50))
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert not LOG.meetings


def test_a_wait_for_members_ends_at_its_limit(alone, monkeypatch):
    """And the rank is no longer among those that have come."""
    store = dist.distributed_c10d._get_default_store()
    store.add(f"{NEW_GROUP_KEYS}/1/members", -1)
    with pytest.raises(
        RuntimeError, match="Timed out waiting 50ms for the other members of a new group"
    ):
        dist.new_group([0], timeout=timedelta(milliseconds=50))
    assert store.add(f"{NEW_GROUP_KEYS}/1/members", 0) == -1
    assert noted() == []


def test_a_forked_process_is_refused_before_it_writes_into_the_store_of_the_ranks(
    alone, monkeypatch
):
    monkeypatch.setattr(LOG, "of_parent", (dist.group.WORLD,))
    with pytest.raises(RuntimeError, match="forked from rank 0"):
        dist.new_group([0])
    assert not dist.distributed_c10d._get_default_store().check([f"{NEW_GROUP_KEYS}/1"])
    assert noted() == []


def test_no_group_is_begun_after_the_rank_was_freed(alone, monkeypatch):
    monkeypatch.setattr(LOG, "closed", True)
    with pytest.raises(RuntimeError, match="this rank was freed"):
        dist.new_group([0], timeout=LIMIT)


def test_many_different_groups_are_named_shortly():
    """The fewest ranks first, four of them; under the first number that differs."""
    made = {
        rank: [NewGroup(rank, "1", (0, 1)), NewGroup(rank, "2", (rank, rank + 1))]
        for rank in range(6)
    }
    assert words_of_groups(differing_groups(made)) == (
        "The ranks do not make the same group in their new_group call number 2: "
        "rank 0 makes one of ranks 0-1, rank 1 makes one of ranks 1-2, rank 2 makes one of "
        "ranks 2-3, rank 3 makes one of ranks 3-4, and 2 more, but every rank must call "
        "new_group, even for a group that it is not in, and in the same order."
    )
    assert words_of_groups(differing_groups({0: made[0][:1], 1: made[1][:1]})) == ""
