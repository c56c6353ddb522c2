"""Broken programs with remote procedure calls; zoo_of_right_calls.py has right ones.

Each starts RPC anew on all ranks, so that every one of them is also a test of starting it after the
one before.
"""

import functools
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from tests.cluster.zoo import breaks, ones, only


def remotely(program, threads=16):
    """The program with an RPC worker on every rank, "w0" and so on."""

    @functools.wraps(program)
    def call(rank, n):
        start(rank, n, threads)
        return program(rank, n)

    return call


def breaks_remotely(*worlds, on=None, threads=16, **options):
    """As `breaks`, with an RPC worker on every rank, also on those that do not run the program."""
    return lambda program: breaks(*worlds, **options)(remotely(only(on, program), threads))


def start(rank, n, threads=16):
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown()
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=threads)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=n, rpc_backend_options=options)


def ask_back(depth):
    mine = dist.get_rank()
    return depth if depth == 0 else rpc.rpc_sync(f"w{1 - mine}", ask_back, (depth - 1,))


@breaks_remotely(2, threads=1)
def a_circle_of_calls_on_one_thread(rank, n):
    """but rank 1's only thread for calls is waiting. Rank 1, in ask_back(...) for rank 0, waits for
    rank 0:
    """
    if rank == 0:
        rpc.rpc_sync("w1", ask_back, (3,))


def receive(src):
    dist.recv(ones(), src=src)


@breaks_remotely(3, on=[0])
def a_served_recv_without_a_send(rank, n):
    """Rank 1, in receive(...) for rank 0, waits in recv(src=2) for rank 2."""
    rpc.rpc_sync("w1", receive, (2,))


@breaks_remotely(2, on=[0])
def a_served_collective_on_one_rank(rank, n):
    """Rank 1, in all_reduce(...) for rank 0, waits in all_reduce() for rank 0"""
    rpc.rpc_async("w1", dist.all_reduce, (ones(),)).wait()


@rpc.functions.async_execution
def when_full():
    return torch.futures.Future()


@breaks_remotely(2, on=[0])
def a_batch_that_never_fills(rank, n):
    """Rank 0 waits for rank 1: when_full(...), which returned a Future that nobody completes."""
    rpc.rpc_sync("w1", when_full)


@breaks_remotely(2, on=[0])
def many_batches_that_never_fill(rank, n):
    """Rank 0 waits for rank 1: when_full(...)"""
    torch.futures.wait_all([rpc.rpc_async("w1", when_full) for _ in range(3)])


@breaks_remotely(3, on=[0], threads=1)
def a_pool_that_is_full(rank, n):
    """but rank 1's only thread for calls is waiting."""
    first = rpc.rpc_async("w1", receive, (2,))
    rpc.rpc_sync("w1", ask_back, (0,))
    first.wait()


@breaks_remotely(3, on=[0, 2])
def a_shutdown_that_one_rank_skips(rank, n):
    """in shutdown for rank 1, which has finished without calling it."""
    rpc.shutdown()


@breaks_remotely(3)
def a_start_that_one_rank_skips(rank, n):
    """in init_rpc for rank 2, which has finished without calling it."""
    rpc.shutdown()
    if rank != 2:
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=n)


@breaks_remotely(2, on=[0])
def a_remote_value_that_never_comes(rank, n):
    """Rank 0 waits for rank 1, in to_here."""
    rpc.remote("w1", receive, (0,)).to_here()


@breaks_remotely(2)
def a_recv_while_another_serves(rank, n):
    """Rank 1 waits in recv(src=0) for rank 0."""
    if rank == 0:
        rpc.rpc_sync("w1", when_full)
    else:
        dist.recv(ones(), src=0)


@breaks_remotely(2, error="RankError")
def a_remote_exception(rank, n):
    """rank 0 raised RuntimeError: ValueError: no such thing|  rank 1   zoo_of_remote_calls.py:"""

    def refuse():
        raise ValueError("no such thing")

    if rank == 0:
        rpc.rpc_sync("w1", refuse)


@breaks_remotely(3, error="RankError")
def an_exception_two_ranks_away(rank, n):
    """rank 0 raised RuntimeError: ZeroDivisionError: division by zero|  rank 2   zoo_of_remote"""

    def divide():
        return 1 / 0

    def pass_on():
        return rpc.rpc_sync("w2", divide)

    if rank == 0:
        rpc.rpc_async("w1", pass_on).wait()


@breaks_remotely(2, on=[0], error="RankDied")
def a_callee_that_dies(rank, n):
    """rank 1 ended with exit status 3"""
    rpc.rpc_sync("w1", os._exit, (3,))


@breaks_remotely(2, on=[0], error="RankError")
def a_worker_that_is_not_there(rank, n):
    """to must be the name, WorkerInfo or id of a worker ('w0', 'w1'), got 'w2'."""
    rpc.rpc_sync("w2", ask_back, (0,))


@breaks_remotely(3, error="RankError")
def one_name_for_two_workers(rank, n):
    """name must be different on every worker, got 'w'. It is that of ranks 0-1. Use
    f"worker{rank}".
    """
    rpc.shutdown()
    rpc.init_rpc("w" if rank < 2 else "v", rank=rank, world_size=n)


@breaks_remotely(2, on=[0], error="RankError")
def a_second_start(rank, n):
    """RPC is already running on rank 0, as "w0". Call rpc.shutdown() on every rank first."""
    rpc.init_rpc("w0", rank=rank, world_size=n)


@breaks_remotely(2, on=[0], error="RankError")
def a_result_that_cannot_be_sent(rank, n):
    """The result of eval on rank 1 cannot be sent (TypeError: cannot pickle"""
    rpc.rpc_sync("w1", eval, ("__import__('threading').Lock()",))


@breaks_remotely(2, error="RankError")
def a_reference_after_the_shutdown(rank, n):
    """This RRef belongs to an RPC agent that has ended: make a new one with rpc.remote."""
    reference = rpc.remote("w1", ask_back, (0,)) if rank == 0 else None
    rpc.shutdown()
    if rank == 0:
        reference.to_here()


@breaks_remotely(2, on=[0], error="RankError")
def a_call_that_is_too_slow(rank, n):
    """timeout"""
    rpc.rpc_sync("w1", time.sleep, (0.5,), timeout=0.1)


@breaks_remotely(2, on=[0], error="RankError")
def a_loss_without_a_context(rank, n):
    """requires_grad not set on root"""
    loss = rpc.rpc_sync("w1", torch.add, (ones(), 1)).sum()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [loss])
