"""Broken programs that raise, die, handle signals, or get wrong results without checked mode."""

import ctypes
import os
import signal
import time

import torch
import torch.distributed as dist

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


@breaks(2, error="RankTimeout", timeout=0.5)
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
    """rank 1 was killed by SIGABRT (often gloo: a message was longer than its tensor)"""
    message(rank, ones(4), ones(2))


# --- what only checked mode finds: wrong results, or a crash ---


@breaks(2, error="RankError", check=True)
def checked_sizes_of_a_message(rank, n):
    """The two ends of a message from rank 0 to rank 1 do not match: float32[4] is sent, float32[2] is expected."""
    message(rank, ones(4), ones(2))


@breaks(2, error="RankError", check=True)
def checked_types_of_a_message(rank, n):
    """The two ends of a message from rank 0 to rank 1 do not match: int32[2] is sent, float32[2] is expected."""
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
    """The ranks' all_reduce calls do not match: rank 1 has int32[2], ranks 0 and 2 have float32[2]."""
    dist.all_reduce(ones(2, torch.int32 if rank == 1 else torch.float32))


@breaks(2, error="RankError", check=True)
def checked_roots(rank, n):
    """The ranks' reduce calls do not match:"""
    dist.reduce(ones(), dst=0 if rank == 0 else 1)


@breaks(3, error="RankError", check=True)
def checked_splits_of_all_to_all(rank, n):
    """The ranks' all_to_all calls do not match: rank 0 sends 3 elements to rank 2, which expects 2 elements."""
    dist.all_to_all([ones(2) for _ in range(n)], [ones(3 if (rank, j) == (0, 2) else 2) for j in range(n)])


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
