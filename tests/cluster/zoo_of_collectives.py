"""Broken programs whose ranks do not all make the same collectives, in the same groups."""

import contextlib
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.cluster.zoo import breaks, ones


@breaks(3)
def the_last_rank_never_comes(rank, n):
    """in all_reduce for rank LAST, which has finished without calling it."""
    if rank < n - 1:
        dist.all_reduce(ones())


@breaks(2, on=[0])
def only_rank_0_comes_to_the_barrier(rank, n):
    """Rank 0 waits in barrier for rank"""
    dist.barrier()


@breaks(2, on=[1])
def a_broadcast_without_its_root(rank, n):
    """in broadcast for rank 0, which has finished without calling it."""
    dist.broadcast(ones(), src=0)


@breaks(2, on=[0])
def a_gather_without_rank_1(rank, n):
    """Rank 0 waits in gather for rank 1, which has finished without calling it."""
    dist.gather(ones(), [ones(), ones()])


@breaks(2)
def one_all_reduce_too_many(rank, n):
    """finished without calling it again."""
    for _ in range(4 if rank == 0 else 3):
        dist.all_reduce(ones())


@breaks(2, on=[0])
def several_as_one_on_rank_0_alone(rank, n):
    """Rank 0 waits in all_reduce for rank 1, which has finished without calling it."""
    with _coalescing_manager():
        dist.all_reduce(ones())
        dist.all_reduce(ones(3))


@breaks(2)
def different_collectives(rank, n):
    """The ranks do not call the same collective:"""
    if rank == 0:
        dist.broadcast(ones(), src=1)
    else:
        dist.all_reduce(ones())


@breaks(2)
def two_collectives_in_another_order(rank, n):
    """The ranks do not call the same collective:"""
    calls = [lambda: dist.all_reduce(ones()), lambda: dist.barrier()]
    for call in calls if rank == 0 else reversed(calls):
        call()


@breaks(2)
def a_recv_against_a_collective(rank, n):
    """{n} of {n} ranks wait for each other: rank 0 in recv for rank 1, rank 1 in barrier for rank
    0
    """
    if rank == 0:
        dist.recv(ones(), src=1)
    dist.barrier()


@breaks(3)
def roots_that_differ(rank, n):
    """The ranks' broadcast calls do not match: rank 0 has the root 0,"""
    dist.broadcast(ones(), src=0 if rank == 0 else 1)
    dist.barrier()
    dist.recv(ones(), src=(rank + 1) % n)


@breaks(3)
def shapes_that_differ(rank, n):
    """The ranks' all_reduce calls do not match:
    rank 2 has float32[5], ranks 0-1 have float32[4].
    """
    dist.all_reduce(ones(5 if rank == 2 else 4))


@breaks(2, on=[0])
def an_async_all_reduce_nobody_joins(rank, n):
    """Rank 0 waits in all_reduce for rank 1, which has finished without calling it."""
    work = dist.all_reduce(ones(), async_op=True)
    work.wait()


@breaks(2, on=[0])
def a_future_nobody_completes(rank, n):
    """Rank 0 waits in all_reduce for rank 1, which has finished without calling it."""
    dist.all_reduce(ones(), async_op=True).get_future().wait()


@breaks(2)
def objects_that_one_rank_does_not_gather(rank, n):
    """in all_gather_object for rank 1, which has finished without calling it."""
    if rank != 1:
        dist.all_gather_object([None] * n, rank)


# --- groups ---


@breaks(2, on=[0])
def new_group_on_one_rank(rank, n):
    """Rank 0 waits in new_group, which every rank must call, for rank"""
    dist.new_group(list(range(n)))


@breaks(3, on=[0, 1])
def new_group_on_some_members(rank, n):
    """Ranks 0-1 wait in new_group, which every rank must call, for rank 2, which has finished
    without calling it.
    """
    dist.new_group([0, 1, 2])


@breaks(3, error="RankError")
def a_group_made_one_call_too_late(rank, n):
    """The ranks do not make the same group in their new_group call number 1: rank 2 makes one of
    rank 2 (zoo
    """
    if rank == n - 1:
        dist.new_group([rank])
    dist.new_group([0, n - 1])


@breaks(3)
def the_same_collective_in_different_groups(rank, n):
    """ranks wait for each other: they call all_reduce in different groups."""
    first, second = dist.new_group(list(range(n))), dist.new_group(list(range(n)))
    dist.all_reduce(ones(), group=first if rank == 0 else second)


@breaks(3)
def a_group_that_one_member_does_not_use(rank, n):
    """Rank 0 waits in all_reduce for rank 2, which has finished without calling it."""
    group = dist.new_group([0, 2])
    if rank == 0:
        dist.all_reduce(ones(), group=group)


# --- training ---


@breaks(2)
def a_parameter_unused_on_one_rank(rank, n):
    """in backward() for gradients of rank 1, which has finished: does the loss of every rank use
    every parameter?
    """
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers[0](x) if rank == 1 else self.layers[1](self.layers[0](x))

    model = torch.nn.parallel.DistributedDataParallel(Model())
    model(torch.ones(1, 2)).sum().backward()


def steps(count, *layers, accumulate=1):
    """Training steps of DDP, with gradients of several backward passes in each."""
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(2, 2), *layers)
    )
    for step in range(count):
        with model.no_sync() if (step + 1) % accumulate else contextlib.nullcontext():
            model(torch.ones(2, 2)).sum().backward()


@breaks(3)
def a_batch_fewer_on_one_rank(rank, n):
    """in backward() for gradients of rank 1, which has finished. Rank 1 has made 3 forward passes,
    and this one is
    """
    steps(3 if rank == 1 else 4)


@breaks(2)
def a_micro_batch_fewer_on_one_rank(rank, n):
    """Rank 1 has made 5 forward passes, and this one is number 6: with fewer batches on some ranks,
    use drop_last=
    """
    steps(5 if rank == 1 else 6, accumulate=3)


def training(rank, bad, skip):
    """Three steps of DDP; in one of them the loss of a rank is nan, and ranks that see `skip(loss)`
    skip a pass.
    """
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for step in range(3):
        is_bad = rank == 1 and step == bad
        loss = model(torch.full((2, 2), float("nan") if is_bad else 1.0)).sum()
        if not skip(loss):
            loss.backward()
    return model.module.weight.grad


@breaks(2)
def a_bad_loss_that_one_rank_skips(rank, n):
    """Rank 1 has made 2 backward passes, and this one is number 3: all ranks must skip the same
    ones, so let them
    """
    training(rank, bad=1, skip=lambda loss: loss.isnan())


@breaks(2, check=True)
def checked_bad_loss_that_one_rank_skips(rank, n):
    """Rank 1 has made 2 backward passes, and this one is number 3: all ranks must skip the same
    ones, so let them
    """
    training(rank, bad=2, skip=lambda loss: loss.isnan())


@breaks(3)
def other_steps_outside_of_no_sync(rank, n):
    """Rank 2 has made 1 forward pass outside of no_sync(), and this one is number 2: every rank
    must enter no_sync()
    """
    steps(4, accumulate=3 if rank == 2 else 2)


@breaks(2)
def a_hook_that_calls_nothing_on_one_rank(rank, n):
    """for gradients of rank 1, which has finished: all_reduce(),"""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))

    def hook(_, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        if rank == 0:
            future = (
                dist.all_reduce(bucket.buffer(), async_op=True)
                .get_future()
                .then(lambda done: done.value()[0])
            )
        return future

    model.register_comm_hook(None, hook)
    model(torch.ones(1, 2)).sum().backward()


@breaks(2, check=True)
def checked_uneven_inputs_on_one_rank_alone(rank, n):
    """2 of 2 ranks wait for each other: rank 0 in all_reduce for rank 1, rank 1 in backward for
    rank 0.
    """
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    with model.join() if rank == 0 else contextlib.nullcontext():
        model(torch.ones(1, 2)).sum().backward()


@breaks(2)
def a_batch_fewer_with_buffers(rank, n):
    """broadcasts buffers and the order of buckets, for rank 0, which has finished. Rank 0 has made
    2 forward passes
    """
    steps(2 if rank == 0 else 3, torch.nn.BatchNorm1d(2))


@breaks(2, check=True)
def a_batch_fewer_with_buffers_checked(rank, n):
    """broadcasts buffers and the order of buckets, for rank 0, which has finished. Rank 0 has made
    2 forward passes
    """
    a_batch_fewer_with_buffers(rank, n)


@breaks(2)
def a_second_batch_on_one_rank(rank, n):
    """Rank 1 waits in the forward pass of DDP, which broadcasts buffers and the order of buckets,
    for rank 0, which
    """
    steps(1 if rank == 0 else 2)


@breaks(2)
def a_model_that_one_rank_evaluates(rank, n):
    """for rank 1, which has finished: to evaluate on some ranks only, call the model inside, with
    .module.
    """
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(2)).eval()
    if rank == 0:
        with torch.no_grad():
            model(torch.ones(2, 2))


@breaks(2, on=[0])
def a_model_that_one_rank_wraps(rank, n):
    """Rank 0 waits in DistributedDataParallel for rank 1, which has finished without calling it."""
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))


@breaks(2)
def two_threads_in_one_group(rank, n):
    """Two threads of each of ranks 0-1 use one group at once:
    give the second a group of its own.
    """
    from distlab.rank.log import LOG  # here, because the function travels by value

    calls = [dist.barrier, lambda: dist.all_gather_object([None] * n, "x")]
    first, second = calls if rank == 0 else reversed(calls)
    before = set(LOG.ties.values())

    def after_the_first():
        while set(LOG.ties.values()) <= before:  # gloo counts calls as they reach it
            time.sleep(0.001)
        second()

    thread = threading.Thread(target=after_the_first)
    thread.start()
    first()
    thread.join()


# --- right ones ---


def a_bad_loss_that_all_ranks_skip(rank, n):
    def any_is_nan(loss):
        bad = loss.isnan().float()
        dist.all_reduce(bad)
        return bad > 0

    return training(rank, bad=1, skip=any_is_nan).tolist() == [[4.0, 4.0]] * 2


def gradients_that_are_averaged_in_every_third_step(rank, n):
    steps(6, accumulate=3)
    return True


def another_model_on_one_rank(rank, n):
    """Backward passes that DDP has no part in."""
    own = torch.ones(1, requires_grad=True)
    for _ in range(rank):
        (2 * own).backward()
    steps(3)
    return own.grad is None if rank == 0 else own.grad.item() == 2 * rank
