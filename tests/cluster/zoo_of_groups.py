"""Groups that the ranks make differently, and right ways to make them; see zoo.py."""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.cluster.zoo import breaks, new_folder, ones

SLOW = 1.5  # seconds: longer than it takes to report a deadlock here

# --- under one number: other members, another order, one more, one less ---


@breaks(4, error="RankError")
def each_host_makes_its_own_group(rank, n):
    """The ranks do not make the same group in their new_group call number 1: ranks 0-1 make one of
    ranks 0-1
    """
    group = dist.new_group([0, 1] if rank < 2 else [2, 3])
    dist.all_reduce(ones(), group=group)


@breaks(4, error="RankError")
def each_rank_makes_its_own_pair_first(rank, n):
    """some ranks raised MismatchError: The ranks do not make the same group in their new_group call
    number 1:
    """
    pairs = [[0, 1], [2, 3]]
    if rank >= 2:
        pairs.reverse()
    groups = [dist.new_group(pair) for pair in pairs]
    dist.all_reduce(ones(), group=groups[0])


@breaks(3, error="RankError")
def two_groups_that_share_a_rank(rank, n):
    """The ranks do not make the same group in their new_group call number 1: rank 2 makes one of
    ranks 1-2 (
    """
    dist.new_group([0, 1] if rank < 2 else [1, 2])


def rows_of_ranks(rank):
    return [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]


def columns_of_ranks(rank):
    return [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]


@breaks(4, error="RankError")
def a_rank_that_makes_columns_before_rows(rank, n):
    """in their new_group call number 1: rank 3 makes one of ranks 0 and 2 (zoo_of_groups.py:"""
    if rank == 3:
        column, row = columns_of_ranks(rank), rows_of_ranks(rank)
    else:
        row, column = rows_of_ranks(rank), columns_of_ranks(rank)
    dist.all_reduce(ones(), group=row)
    dist.all_reduce(ones(), group=column)


@breaks(3, error="RankError")
def another_group_after_its_members_have_gone_on(rank, n):
    """in their new_group call number 1: rank 2 makes one of ranks 0 and 2 (zoo_of_groups.py:"""
    if rank == 2:
        dist.recv(ones(), src=1)
        dist.new_group([0, 2])
    else:
        dist.all_reduce(ones(), group=dist.new_group([0, 1]))
    if rank == 1:
        dist.send(ones(), dst=2)


@breaks(3, error="RankError")
def a_rank_that_leaves_out_a_group_without_it(rank, n):
    """in their new_group call number 1: rank 2 makes one of ranks 0 and 2 (zoo_of_groups.py:"""
    if rank != 2:
        dist.new_group([0, 1])
    dist.new_group([0, 2])


@breaks(3)
def a_rank_that_leaves_out_one_of_three_groups(rank, n):
    """Ranks 0-1 wait in new_group, which every rank must call, for rank 2, which has finished
    without calling it
    """
    for _ in range(2 if rank == 2 else 3):
        dist.new_group()


@breaks(3)
def a_rank_that_makes_one_group_more(rank, n):
    """Rank 1 waits in new_group, which every rank must call, for ranks 0 and 2, which have finished
    without
    """
    for _ in range(2 if rank == 1 else 1):
        dist.new_group()


@breaks(4, error="RankError")
def subgroups_of_another_size(rank, n):
    """in their new_group call number 1: rank 3 makes one of ranks 0-3 (zoo_of_groups.py:"""
    dist.new_subgroups(4 if rank == 3 else 2)


@breaks(4, error="RankError")
def a_mesh_of_another_shape(rank, n):
    """The ranks do not make the same group in their new_group call number 1: rank 0 makes one of"""
    init_device_mesh("cpu", (4, 1) if rank == 0 else (2, 2), mesh_dim_names=("rows", "columns"))


# --- made by their members alone ---


@breaks(3)
def pairs_that_are_made_in_a_circle(rank, n):
    """rank 1 in new_group for rank 2, rank 2 in new_group for rank 0. Every rank must make the
    groups that it shares
    """
    for pair in {0: ([0, 1], [0, 2]), 1: ([1, 2], [0, 1]), 2: ([0, 2], [1, 2])}[rank]:
        dist.new_group(pair, use_local_synchronization=True)


@breaks(3)
def pairs_of_ranks_that_are_in_unequally_many_groups(rank, n):
    """by its members and by how many groups a rank is in, and rank 0 is in 2, rank 2 is in 1.
    Leave
    """
    for pair in [0, 1], [0, 2], [1, 2]:
        if rank in pair:
            dist.new_group(pair, use_local_synchronization=True)


# --- programs that are right ---


def the_same_groups_by_other_lines(rank, n):
    """Some ranks write in a line what others do in a loop."""
    if rank == 0:
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3]), dist.new_group([1, 0, 2])]
    else:
        groups = [
            dist.new_group(members)
            for members in ([1, 0], (3, 2), torch.tensor([0, 1, 2]).tolist())
        ]
    total = ones(1)
    for group in groups:
        if dist.get_rank(group) >= 0:
            dist.all_reduce(total, group=group)
    return total.item() == (2 if rank == 3 else 6)


def more_groups_than_are_remembered(rank, n):
    groups = [dist.new_group([turn % n, (turn + 1) % n]) for turn in range(40)]
    own = sum(dist.get_rank(group) >= 0 for group in groups)
    for group in groups:
        dist.destroy_process_group(group) if dist.get_rank(group) >= 0 else None
    return own == 20


def groups_that_are_made_again(rank, n):
    for _ in range(3):
        for members in [0, 1], [2, 3]:
            group = dist.new_group(members)
            if rank in members:
                total = ones(1)
                dist.all_reduce(total, group=group)
                dist.destroy_process_group(group)
    return total.item() == 2


def a_group_that_is_made_after_a_message_of_its_member(rank, n):
    """A rank that is not a member does not keep the members waiting."""
    if rank == 3:
        dist.recv(ones(), src=0)
    total = ones(1)
    dist.all_reduce(total, group=dist.new_group([0, 1, 2]))
    if rank == 0:
        dist.send(ones(), dst=3)
    return total.item() == (1 if rank == 3 else 3)


def a_group_of_its_own_on_each_rank(rank, n):
    """Against torch's rule, and harmless."""
    group, total = dist.new_group([rank]), ones(1)
    dist.all_reduce(total, group=group)
    return total.item() == 1


def groups_that_a_slow_rank_makes_late(rank, n):
    if rank == 1:
        time.sleep(SLOW)
    groups = [dist.new_group(members) for members in ([0, 1], [1, 2], [0, 1, 2, 3])]
    total = ones(1)
    dist.all_reduce(total, group=groups[-1])
    return total.item() == 4


def groups_of_a_mesh(rank, n):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=mesh.get_group("columns"))
    flat = mesh["rows", "columns"]._flatten("all")
    dist.all_reduce(total, group=flat.get_group())
    return total.item() == 12


def subgroups_of_several_kinds(rank, n):
    pair, _ = dist.new_subgroups(2)
    other, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=pair)
    dist.all_reduce(total, group=other)
    return total.item() == 6


def groups_of_one_name_in_two_worlds_of_its_own(rank, n):
    """Each world has another file, and numbers its groups from 1."""
    folder = [new_folder()]
    dist.broadcast_object_list(folder)
    total = ones(1)
    for name in ("first", "second"):
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", init_method=f"file://{folder[0]}/{name}", rank=rank, world_size=n
        )
        group = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(total, group=group)
        dist.barrier()
    dist.destroy_process_group()
    return total.item() == (4 if rank < 2 else 1)
