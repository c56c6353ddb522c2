"""Programs with ranks, groups and functions that are not where they are looked for."""

import time

import torch
import torch.distributed as dist

import distlab
from tests.cluster.zoo import breaks, message, ones

# --- messages to nobody ---


@breaks(2, error="RankError")
def a_chain_without_an_end(rank, n):
    """got {n}. The last rank has no next one: use (rank + 1) % world_size, or skip it."""
    if rank > 0:
        dist.recv(ones(), src=rank - 1)
    dist.send(ones(), dst=rank + 1)


@breaks(2, error="RankError")
def a_chain_without_a_beginning(rank, n):
    """got -1. Rank 0 has no previous one: use (rank - 1) % world_size, or skip it."""
    dist.recv(ones(), src=rank - 1)
    if rank < n - 1:
        dist.send(ones(), dst=rank + 1)


@breaks(2, on=[1], error="RankError")
def a_recv_from_the_rank_after_the_last(rank, n):
    """src must be a rank from 0 to LAST, got {n}. The last rank has no next one:"""
    dist.recv(ones(), src=rank + 1)


@breaks(2, error="RankError")
def a_send_to_the_rank_before_the_first(rank, n):
    """dst must be a rank from 0 to LAST, got -1. Rank 0 has no previous one:"""
    works = [dist.isend(ones(), dst=rank - 1), dist.irecv(ones(), src=(rank + 1) % n)]
    for work in works:
        work.wait()


@breaks(2, on=[0], error="RankError")
def a_send_to_a_rank_far_away(rank, n):
    """dst must be a rank from 0 to 1, got 7. Use a rank below the number of ranks, which is 2
    here.
    """
    dist.send(ones(), dst=7)


@breaks(2, error="RankError")
def a_rank_that_is_a_text(rank, n):
    """dst must be a rank from 0 to 1, got '1'."""
    if rank == 0:
        dist.send(ones(), dst="1")
    elif rank == 1:
        dist.recv(ones(), src=0)


@breaks(2, error="RankError")
def a_batch_with_both_neighbours(rank, n):
    """peer must be a rank from 0 to LAST, got {n}. The last rank has no next one:"""
    pairs = ((dist.isend, rank + 1), (dist.irecv, (rank - 1) % n))
    for work in dist.batch_isend_irecv([dist.P2POp(op, ones(), peer) for op, peer in pairs]):
        work.wait()


@breaks(2, error="RankError")
def objects_for_the_next_rank(rank, n):
    """dst must be a rank from 0 to LAST, got {n}. The last rank has no next one:"""
    if rank > 0:
        dist.recv_object_list([None], src=rank - 1)
    dist.send_object_list([rank], dst=rank + 1)


@breaks(2, error="RankError")
def objects_from_the_previous_rank(rank, n):
    """src must be a rank from 0 to LAST, got -1. Rank 0 has no previous one:"""
    dist.recv_object_list([None], src=rank - 1)


@breaks(2, on=[1], error="RankError", check=True)
def checked_and_no_next_rank(rank, n):
    """dst must be a rank from 0 to LAST, got {n}. The last rank has no next one:"""
    dist.send(ones(), dst=rank + 1)


@breaks(2, on=[1])
def an_error_that_is_caught_before_a_deadlock(rank, n):
    """Rank LAST waits for a message from rank 0, which has finished without sending it."""
    try:
        dist.send(ones(), dst=n)
    except ValueError:
        dist.recv(ones(), src=0)


@breaks(2, error="RankError")
def a_recv_from_oneself(rank, n):
    """With gloo a rank cannot send to itself or receive from itself:
    copy the tensor with copy_().
    """
    dist.recv(ones(), src=rank)


@breaks(2, error="RankError", check=True)
def checked_recv_from_oneself(rank, n):
    """With gloo a rank cannot send to itself or receive from itself:
    copy the tensor with copy_().
    """
    dist.recv(ones(), src=rank)


@breaks(3, error="RankError", check=True)
def checked_recv_from_oneself_by_the_number_in_the_group(rank, n):
    """With gloo a rank cannot send to itself or receive from itself:
    copy the tensor with copy_().
    """
    pair = dist.new_group([1, 2])
    if rank == 2:
        dist.recv(ones(), group=pair, group_src=1)
    elif rank == 1:
        dist.send(ones(), group=pair, group_dst=1)


@breaks(2, error="RankError")
def an_isend_to_oneself(rank, n):
    """With gloo a rank cannot send to itself or receive from itself:
    copy the tensor with copy_().
    """
    works = [dist.isend(ones(), dst=rank), dist.irecv(ones(), src=rank)]
    for work in works:
        work.wait()


@breaks(2, error="RankError")
def a_send_to_oneself(rank, n):
    """destination rank should not be the same as the rank of the current process."""
    dist.send(ones(), dst=rank)


# --- collectives with a root that is none ---

for name, root, value, call in (
    ("broadcast", "src", 9, lambda rank, n: dist.broadcast(ones(), src=9)),
    ("reduce", "dst", -1, lambda rank, n: dist.reduce(ones(), dst=-1)),
    ("gather", "dst", 3, lambda rank, n: dist.gather(ones(), None, dst=n)),
    ("scatter", "src", 3, lambda rank, n: dist.scatter(ones(), None, src=n)),
    ("broadcast_object_list", "src", 3, lambda rank, n: dist.broadcast_object_list([rank], src=n)),
    ("gather_object", "dst", 3, lambda rank, n: dist.gather_object(rank, None, dst=n)),
    (
        "scatter_object_list",
        "src",
        3,
        lambda rank, n: dist.scatter_object_list([None], None, src=n),
    ),
):
    call.__name__, call.__doc__ = (
        f"{name}_with_a_wrong_root",
        f"{root} must be a rank from 0 to 2, got {value}.",
    )
    breaks(3, error="RankError")(call)


@breaks(2, error="RankError")
def a_root_beyond_the_last_on_one_rank(rank, n):
    """rank 1 raised ArgumentError: src must be a rank from 0 to 1, got 2."""
    dist.broadcast(ones(), src=n if rank == 1 else 0)
    dist.barrier()


@breaks(3, error="RankError", check=True)
def checked_and_a_root_that_is_none(rank, n):
    """dst must be a rank from 0 to 2, got 5."""
    dist.reduce(ones(), dst=5)


# --- groups ---


@breaks(3, error="RankError")
def a_rank_of_the_world_given_as_one_of_the_group(rank, n):
    """group_dst must be a rank of its group, from 0 to 1, got 2."""
    group = dist.new_group([0, 2])
    if rank == 0:
        dist.send(ones(), group_dst=2, group=group)


@breaks(3, error="RankError")
def a_root_that_is_not_in_the_group(rank, n):
    """group_src must be a rank of its group, from 0 to 1, got 2."""
    group = dist.new_group([0, 2])
    if rank != 1:
        dist.broadcast(ones(), group_src=2, group=group)


@breaks(3, error="RankError")
def a_send_in_a_group_without_this_rank(rank, n):
    """This rank is not in that group. Make the call only on members of the group."""
    group = dist.new_group([0, 1])
    if rank == 2:
        dist.send(ones(), dst=0, group=group)


@breaks(2, error="RankError")
def a_group_that_was_destroyed(rank, n):
    """Make it again: a device mesh with mesh = init_device_mesh(...), a group with
    dist.new_group(...),
    """
    group = dist.new_group([0, 1])
    dist.destroy_process_group(group)
    dist.isend(ones(), dst=1 - rank, group=group)


# --- what a call returns, and where a function is ---


@breaks(2, error="RankError")
def a_wait_for_what_is_over(rank, n):
    """A call returns a Work to wait for only with async_op=True."""
    dist.all_reduce(ones()).wait()


@breaks(2, error="RankError")
def a_function_that_no_file_has(rank, n):
    """A new process imports its function from a file, so write it into one with"""

    def work(number):
        print(number)

    torch.multiprocessing.spawn(work, nprocs=1)


# --- programs that are right ---


def translated_ranks(rank, n):
    """In a group of ranks 1 and 3, rank 3 is dst=3 and group_dst=1."""
    group, received = dist.new_group([1, 3]), torch.zeros(2)
    if rank == 1:
        dist.send(ones(1), dst=3, group=group)
        dist.send(ones(1), group_dst=1, group=group)
    elif rank == 3:
        dist.recv(received[:1], src=1, group=group)
        dist.recv(received[1:], group_src=0, group=group)
    return rank != 3 or received.tolist() == [1, 1]


def any_source_in_a_group(rank, n):
    group, received = dist.new_group([0, 3]), torch.zeros(1)
    if rank == 3:
        dist.send(ones(1), dst=0, group=group)
    return rank != 0 or dist.recv(received, group=group) == 3


def every_root_of_a_group(rank, n):
    group = dist.new_group([1, 3])
    tensor = torch.tensor([float(rank)])
    if rank in (1, 3):
        dist.broadcast(tensor, src=3, group=group)
        dist.reduce(tensor, dst=1, group=group)
        dist.broadcast(tensor, group_src=0, group=group)
    return tensor.item() == (6 if rank in (1, 3) else rank)


def a_group_without_this_rank(rank, n):
    """torch warns, and does nothing: a program may call it on every rank."""
    group, total = dist.new_group([0, 1]), ones(1)
    dist.all_reduce(total, group=group)
    return total.item() == (2 if rank < 2 else 1)


def a_batch_in_a_group(rank, n):
    """P2POp takes ranks of the world, or of the group."""
    group, received = dist.new_group([1, 3]), torch.zeros(1)
    if rank in (1, 3):
        ops = [dist.P2POp(dist.isend, ones(1), 4 - rank, group=group)]
        ops.append(dist.P2POp(dist.irecv, received, group_peer=int(rank == 1), group=group))
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    return received.item() == (rank in (1, 3))


def ranks_that_are_numpys(rank, n):
    import numpy

    following, previous = numpy.array([(rank + 1) % n, (rank - 1) % n])
    work = dist.isend(ones(1), dst=following)
    dist.recv(torch.zeros(1), src=previous)
    work.wait()
    dist.broadcast(ones(1), src=numpy.int64(n - 1))
    return True


def numbers_of_numpy(rank, n):
    """As tags, members, sizes and values of other libraries: what they mean is what Python's own
    mean.
    """
    import numpy

    received = []
    for tag in (*numpy.arange(2), torch.tensor(2), numpy.float32(3)):
        work = dist.isend(ones(1) * float(tag), dst=(rank + 1) % n, tag=tag)
        received.append(torch.zeros(1))
        dist.recv(received[-1], src=(rank - 1) % n, tag=tag)
        work.wait()
    group, total = dist.new_group(numpy.arange(n)), ones(1)
    dist.all_reduce(total, group=group)
    parts, sizes = torch.zeros(n), numpy.ones(n, dtype=int)
    dist.all_to_all_single(parts, ones(n), sizes, sizes)
    return (
        [one.item() for one in received] == [0, 1, 2, 3]
        and total.item() == n
        and parts.sum().item() == n
    )


@breaks(2)
def a_deadlock_after_numbers_of_numpy(rank, n):
    """{n} of {n} ranks wait for each other; nobody will send."""
    assert numbers_of_numpy(rank, n)
    dist.recv(ones(), src=1 - rank)


@breaks(2)
def a_deadlock_with_numbers_of_numpy(rank, n):
    """Rank 0 sends with tag 1, but rank 1 waits for tag 2."""
    import numpy

    one, two = numpy.arange(1, 3)
    message(rank, ones(), ones(), tags=(one, two))


@breaks(2, on=[0])
def a_wait_of_ones_own_for_numpys_ranks(rank, n):
    """Rank 0 waits for a file for rank 1, which has finished."""
    import numpy

    with distlab.waiting("for a file", numpy.arange(1, 2)) as wait:
        while True:
            wait.check()
            time.sleep(0.001)


@breaks(3)
def a_group_of_numpys_ranks(rank, n):
    """Rank 1 waits in all_reduce for rank 2, which has finished without calling it."""
    import numpy

    group = dist.new_group(numpy.arange(1, 3))
    if rank == 1:
        dist.all_reduce(ones(), group=group)


def methods_of_the_group_itself(rank, n):
    world, received = dist.group.WORLD, torch.zeros(1)
    work = world.send([ones(1)], (rank + 1) % n, 5)
    world.recv([received], (rank - 1) % n, 5).wait()
    work.wait()
    world.broadcast(received, root=n - 1).wait()
    return received.item() == 1
