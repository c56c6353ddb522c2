"""Broken programs that raise, die, handle signals, or get wrong results without checked mode."""

import ctypes
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.cluster.zoo import breaks, message, ones
from tests.cluster.zoo_of_messages import sends_in_a_circle_after_messages_from_any_source

# --- signals; before a program that leaves a process on its rank, which might send one ---


def replace_handlers(by):
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, by)


@breaks(2)
def a_wait_where_signals_are_handled(rank, n):
    """Variables are kept"""
    replace_handlers(lambda *_: None)
    dist.recv(ones(), src=1 - rank)


@breaks(2, error="RankTimeout", timeout=2)
def a_sleep_where_signals_are_ignored(rank, n):
    """Variables are kept"""
    replace_handlers(signal.SIG_IGN)
    time.sleep(60)


# --- failures ---


@breaks(2, error="RankError")
def one_raises_and_the_others_wait(rank, n):
    """rank 1 raised ValueError: bad batch"""
    if rank == 1:
        raise ValueError("bad batch")
    dist.barrier()


@breaks(2)
def an_error_whose_cleaning_up_waits_for_the_others(rank, n):
    """rank 0 had raised ValueError: no data before, and was handling it|  rank 0   zoo"""
    try:
        if rank == 0:
            raise ValueError("no data")
        dist.all_reduce(ones())
    finally:
        dist.barrier()


@breaks(2, error="RankError", check=True)
def checked_cleaning_up_after_an_error(rank, n):
    """rank 0 had raised ValueError: no data before, and was handling it|  rank 0   zoo"""
    an_error_whose_cleaning_up_waits_for_the_others(rank, n)


@breaks(2, error="RankError")
def a_message_of_a_million_letters(rank, n):
    """rank 1 raised ValueError: ///////"""
    if rank == 1:
        raise ValueError("/" * 1_000_000)
    dist.barrier()


@breaks(2, error="RankError")
def one_leaves_by_sys_exit(rank, n):
    """rank 0 raised SystemExit: 1"""
    if rank == 0:
        raise SystemExit(1)
    dist.all_reduce(ones())


@breaks(2, error="RankError")
def an_exception_that_cannot_be_pickled(rank, n):
    """ranks 0-1 raised Odd: no way"""

    class Odd(Exception):
        def __reduce__(self):
            raise TypeError("never")

    raise Odd("no way")


def backwards(rank):
    """The backward passes of two models, in another order on each rank."""
    models = [DDP(nn.Linear(2, 1)), DDP(nn.Linear(2, 2))]
    losses = [model(torch.ones(1, 2)).sum() for model in models]
    for loss in losses if rank == 0 else reversed(losses):
        loss.backward()


@breaks(2, error="RankDied")
def two_models_in_another_order(rank, n):
    """names the one that does not match.|What torch begins in C++ is not compared: functional
    collectives
    """
    backwards(rank)


@breaks(2, error="RankDied", check=True)
def checked_models_in_another_order(rank, n):
    """What torch begins in C++ is not compared: functional collectives, which DTensor uses, and the
    gradients and
    """
    backwards(rank)


@breaks(2, error="RankDied")
def one_ends_by_a_signal_that_asks_for_it(rank, n):
    """rank 1 was killed by SIGTERM."""
    if rank == 1:
        signal.raise_signal(signal.SIGTERM)
    dist.barrier()


@breaks(3, error="RankDied")
def one_is_killed(rank, n):
    """rank 1 was killed by SIGKILL (often by the system when memory runs out, or by kill -9)"""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


@breaks(3, error="RankDied")
def one_ends_by_os_exit(rank, n):
    """rank 2 ended with exit status 7"""
    if rank == 2:
        os._exit(7)
    dist.barrier()


@breaks(2, error="RankDied")
def a_segmentation_fault(rank, n):
    """rank 0 was killed by SIGSEGV (a fault in compiled code)"""
    if rank == 0:
        ctypes.string_at(0)
    dist.barrier()


@breaks(2, error="RankDied")
def a_message_larger_than_its_recv(rank, n):
    """rank 1 was killed by SIGABRT (gloo received 16 bytes where it expected 8)."""
    message(rank, ones(4), ones(2))


@breaks(2, error="RankDied")
def a_collective_longer_than_that_of_another_rank(rank, n):
    """rank 1 was killed by SIGABRT (gloo received 1000 bytes where it expected 4)."""
    dist.all_reduce(ones(1 if rank else 1000))


@breaks(3, error="RankDied")
def two_collectives_longer_than_that_of_one_rank(rank, n):
    """The ranks' all_reduce calls do not match: rank 0 has float32[1000], rank 1 has float32[4]."""
    # each rank's chunks go to the one before: only the last gets too much
    dist.all_reduce(ones([1000, 4, 2][rank]))


@breaks(2, error="RankDied")
def a_type_longer_than_that_of_another_rank(rank, n):
    """What the other rank did last:|  rank 0  broadcast(src=0)  float64[8]  zoo_of_failures.py:"""
    dist.broadcast(ones(8, torch.float64 if rank == 0 else torch.float32), src=0)


@breaks(2, error="RankDied")
def a_collective_that_is_skipped(rank, n):
    """rank 0  all_reduce()  float32[1000]  zoo_of_failures.py:"""
    if rank == 0:
        dist.all_reduce(ones(1000))
    dist.all_reduce(ones(2))


@breaks(3, error="RankDied")
def an_abort_of_the_learners(rank, n):
    """rank 1 was killed by SIGABRT."""
    if rank == 1:
        os.abort()
    dist.barrier()


# --- what only checked mode finds: wrong results, or a crash ---


@breaks(2, error="RankError", check=True)
def checked_sizes_of_a_message(rank, n):
    """The two ends of a message from rank 0 to rank 1 do not match: float32[4] is sent, float32[2]
    is expected.
    """
    message(rank, ones(4), ones(2))


@breaks(2, error="RankError", check=True)
def checked_types_of_a_message(rank, n):
    """The two ends of a message from rank 0 to rank 1 do not match: int32[2] is sent, float32[2] is
    expected.
    """
    if rank == 0:
        dist.send(ones(2, torch.int32), dst=1)
    elif rank == 1:
        dist.irecv(ones(2), src=0).wait()


@breaks(2, error="RankError", check=True)
def checked_reduce_ops(rank, n):
    """The ranks' all_reduce calls do not match: rank 0 has op=MAX,"""
    dist.all_reduce(ones(), op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)


@breaks(3, error="RankError", check=True)
def checked_types_of_a_collective(rank, n):
    """The ranks' all_reduce calls do not match: rank 1 has int32[2], ranks 0 and 2 have
    float32[2].
    """
    dist.all_reduce(ones(2, torch.int32 if rank == 1 else torch.float32))


@breaks(2, error="RankError", check=True)
def checked_roots(rank, n):
    """The ranks' reduce calls do not match:"""
    dist.reduce(ones(), dst=0 if rank == 0 else 1)


@breaks(3, error="RankError", check=True)
def checked_splits_of_all_to_all(rank, n):
    """The ranks' all_to_all calls do not match: rank 0 sends 3 elements to rank 2, which expects 2
    elements.
    """
    dist.all_to_all(
        [ones(2) for _ in range(n)], [ones(3 if (rank, j) == (0, 2) else 2) for j in range(n)]
    )


@breaks(2, error="RankError", check=True)
def checked_results_of_a_future(rank, n):
    """ranks 0-1 raised MismatchError: The ranks' all_reduce calls do not match: rank 0 has
    float32[2],
    """
    dist.all_reduce(ones(2 + rank), async_op=True).get_future().then(
        lambda done: done.value()
    ).wait()


@breaks(2, error="RankError", check=True)
def checked_hooks_of_data_parallel(rank, n):
    """ranks 0-1 raised MismatchError: The ranks' all_reduce calls do not match: rank 0 has
    float16[6],
    """
    model = DDP(nn.Linear(2, 2))
    model.register_comm_hook(
        None, default_hooks.fp16_compress_hook if rank == 0 else default_hooks.allreduce_hook
    )
    model(ones()).sum().backward()


@breaks(2, error="RankError", check=True)
def checked_hooks_in_another_group(rank, n):
    """RuntimeError: MismatchError: The ranks' all_reduce calls do not match: rank 0 has
    float16[6],
    """
    model, group = DDP(nn.Linear(2, 2)), dist.new_group()
    hook = default_hooks.fp16_compress_hook if rank == 0 else default_hooks.allreduce_hook
    model.register_comm_hook(group, hook)
    model(ones()).sum().backward()


@breaks(2, error="RankError", check=True)
def checked_calls_as_one(rank, n):
    """The ranks' all_reduce calls do not match: rank 0 has float32[2], float32[3], rank 1 has"""
    with _coalescing_manager():
        dist.all_reduce(ones(2 + rank))
        dist.all_reduce(ones(3))


@breaks(2, error="RankError", check=True)
def checked_one_memory_for_every_rank(rank, n):
    """tensor_list must be tensors that share no memory, got the same memory for what ranks 0-1
    send. Make it with
    """
    dist.all_gather([ones()] * n, ones())


@breaks(3, error="RankError", check=True)
def checked_places_that_overlap(rank, n):
    """gather_list must be tensors that share no memory, got the same memory for what ranks 0-2
    send.
    """
    buffer = torch.zeros(n + 1)
    dist.gather(ones(), [buffer[r : r + 2] for r in range(n)] if rank == 1 else None, dst=1)


@breaks(3, error="RankError", check=True)
def checked_one_memory_for_two_ranks(rank, n):
    """output_tensor_list must be tensors that share no memory, got the same memory for what ranks 0
    and 2 send.
    """
    place = ones()
    dist.all_to_all([place, ones(), place], [ones()] * n)


@breaks(2, error="RankError")
def a_rank_that_comes_too_late(rank, n):
    """At that time rank 0 was sleeping, zoo_of_failures.py:"""
    dist.barrier()  # the group's limit is that of its building, too
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        # until the notebook has noticed that rank 1 failed, and has asked what rank 0 does
        time.sleep(5)
    dist.barrier(group=group)


@breaks(2, error="RankError", check=True)
def checked_timeout_of_a_group(rank, n):
    """rank 1 raised RuntimeError: Timed out waiting 2000ms for recv operation to complete"""
    dist.barrier()  # the group's limit is that of its building, too
    group = dist.new_group(timeout=timedelta(seconds=2))
    if rank == 0:
        time.sleep(4)
    dist.barrier(group=group)


@breaks(2, error="RankError", check=True)
def checked_timeout_of_a_future(rank, n):
    """rank 1 raised RuntimeError: Timed out waiting 2000ms for recv operation to complete"""
    dist.barrier()  # the group's limit is that of its building, too
    group = dist.new_group(timeout=timedelta(seconds=2))
    if rank == 0:
        time.sleep(4)
    dist.all_reduce(ones(), group=group, async_op=True).get_future().wait()


@breaks(2, check=True)
def checked_and_nobody_sends(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    dist.recv(ones(), src=1 - rank)


@breaks(3, check=True)
def checked_after_messages_from_any_source(rank, n):
    """2 of 3 ranks wait for each other; nobody will receive, and a send waits for its receiver."""
    sends_in_a_circle_after_messages_from_any_source(rank, n)


@breaks(3, on=[0, 1], check=True)
def checked_and_one_never_comes(rank, n):
    """Ranks 0-1 wait in barrier for rank 2, which has finished without calling it."""
    dist.barrier()
