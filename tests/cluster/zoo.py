"""Small broken programs, each with the sentence that must come out. Every one of them hangs, or lies, without distlab.

`ZOO` holds (number of ranks, program, error, sentence, options of Cluster.run). A program runs on every rank.
"""

import ctypes
import functools
import inspect
import os
import signal
import time

import torch
import torch.distributed as dist

ZOO = []


def breaks(*worlds, on=None, error="DeadlockError", **options):
    """The decorated program breaks on so many ranks; its docstring is the sentence, {n} the number of ranks.

    Only the ranks `on` run it; left out, all of them.
    """

    def note(program):
        given = only(on, program)
        for n in worlds:
            ZOO.append((n, given, error, program.__doc__.replace("{n}", str(n)), options))
        return given

    return note


def only(ranks, program):
    """The program for every rank, which some ranks run, or all where `ranks` is None."""

    @functools.wraps(program)
    def of_some(rank, n):
        if rank in ranks:
            program(rank, n)

    return program if ranks is None else of_some


def right_programs(module):
    """The correct programs of a module: its functions of (rank, n) that do not break. Each returns True on every rank.

    Nothing may refuse one, or call it stuck.
    """
    broken = [program for _, program, *_ in ZOO]
    ours = [one for _, one in inspect.getmembers(module, inspect.isfunction) if one.__module__ == module.__name__]
    return [one for one in ours if [*inspect.signature(one).parameters] == ["rank", "n"] and one not in broken]


def ones(count=2, dtype=torch.float32):
    return torch.ones(count, dtype=dtype)


def message(rank, sent, received, tags=(0, 0)):
    """Rank 0 sends a tensor, and rank 1 receives into one."""
    if rank == 0:
        dist.send(sent, dst=1, tag=tags[0])
    elif rank == 1:
        dist.recv(received, src=0, tag=tags[1])


# --- messages ---


@breaks(4)
def everybody_receives_first(rank, n):
    """{n} of {n} ranks wait for each other; nobody will send."""
    dist.recv(ones(), src=(rank - 1) % n)
    dist.send(ones(), dst=(rank + 1) % n)


@breaks(3)
def everybody_sends_first(rank, n):
    """{n} of {n} ranks wait for each other; nobody will receive, and a send waits for its receiver."""
    dist.send(ones(), dst=(rank + 1) % n)
    dist.recv(ones(), src=(rank - 1) % n)


@breaks(2, on=[1])
def a_recv_without_a_send(rank, n):
    """Rank 1 waits for a message from rank 0, which has finished without sending it."""
    dist.recv(ones(), src=0)


@breaks(2, on=[0])
def a_send_without_a_recv(rank, n):
    """Rank 0 sends a message to rank 1, which has finished without receiving it."""
    dist.send(ones(), dst=1)


@breaks(2)
def two_sends_one_recv(rank, n):
    """Rank 0 sends a message to rank 1, which has finished without receiving it."""
    message(rank, ones(), ones())
    if rank == 0:
        dist.send(ones(), dst=1)


@breaks(2)
def one_send_two_recvs(rank, n):
    """Rank 1 waits for a message from rank 0, which has finished without sending it."""
    message(rank, ones(), ones())
    if rank == 1:
        dist.recv(ones(), src=0)


@breaks(2)
def tags_that_differ(rank, n):
    """Rank 0 sends with tag 1, but rank 1 waits for tag 2."""
    message(rank, ones(), ones(), tags=(1, 2))


@breaks(2)
def tags_in_another_order(rank, n):
    """Rank 0 sends with tag 7, but rank 1 waits for tag 9."""
    for tags in ((7, 9), (9, 7)):
        message(rank, ones(), ones(), tags)


@breaks(3)
def a_message_for_somebody_else(rank, n):
    """Rank 0 sends a message to rank 2, which has finished without receiving it."""
    if rank == 0:
        dist.send(ones(), dst=2)
    elif rank == 1:
        dist.recv(ones(), src=0)


@breaks(2, on=[0])
def an_irecv_nobody_sends_to(rank, n):
    """Rank 0 waits for a message from rank 1, which has finished without sending it."""
    work = dist.irecv(ones(), src=1)
    work.wait()


@breaks(2, on=[1])
def an_isend_nobody_receives(rank, n):
    """Rank 1 sends a message to rank 0, which has finished without receiving it."""
    dist.isend(ones(), dst=0).wait()


@breaks(3, on=[0])
def from_any_source_but_nobody_sends(rank, n):
    """Rank 0 waits for a message from ranks 1-LAST, which have finished without sending it."""
    dist.recv(ones())


@breaks(3)
def sends_in_a_circle_after_messages_from_any_source(rank, n):
    """2 of {n} ranks wait for each other; nobody will receive, and a send waits for its receiver."""
    if rank == 0:
        for _ in range(n - 1):
            dist.recv(ones())
    else:
        dist.send(ones(), dst=0)
    dist.barrier()  # else a message of the circle could be taken for one of the first
    if rank < 2:
        dist.send(ones(), dst=1 - rank)


@breaks(2)
def batches_without_a_partner(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, ones(), 1 - rank)]):
        work.wait()


@breaks(2, on=[0])
def an_object_nobody_receives(rank, n):
    """Rank 0 sends a message to rank 1, which has finished without receiving it."""
    dist.send_object_list([{"a": 1}], dst=1)


@breaks(3, on=[1, 2])
def a_chain_that_ends_at_a_finished_rank(rank, n):
    """Rank 1 waits for a message from rank 0, which has finished without sending it."""
    dist.recv(ones(), src=rank - 1)


@breaks(2)
def a_ring_of_irecvs_waited_for_before_sending(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    work = dist.irecv(ones(), src=1 - rank)
    work.wait()
    dist.send(ones(), dst=1 - rank)


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


# --- collectives ---


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
    """finished without calling it once more."""
    for _ in range(4 if rank == 0 else 3):
        dist.all_reduce(ones())


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
    """{n} of {n} ranks wait for each other: rank 0 in recv for rank 1, rank 1 in barrier for rank 0"""
    if rank == 0:
        dist.recv(ones(), src=1)
    dist.barrier()


@breaks(3)
def roots_that_differ(rank, n):
    """The ranks do not agree in broadcast: rank 0 has the root 0,"""
    dist.broadcast(ones(), src=0 if rank == 0 else 1)
    dist.barrier()
    dist.recv(ones(), src=(rank + 1) % n)


@breaks(3)
def shapes_that_differ(rank, n):
    """The ranks do not agree in all_reduce: rank 2 has float32[5], ranks 0-1 have float32[4]."""
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
    """Ranks 0-1 wait in new_group, which every rank must call, for rank 2, which has finished without calling it."""
    dist.new_group([0, 1, 2])


@breaks(3)
def a_group_made_one_call_too_late(rank, n):
    """Rank 0 waits in its new_group number 1, and rank LAST has made more of them: every rank must call new_group,"""
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
    """in backward() for gradients of rank 1, which has finished: does the loss of every rank use every parameter?"""
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers[0](x) if rank == 1 else self.layers[1](self.layers[0](x))

    model = torch.nn.parallel.DistributedDataParallel(Model())
    model(torch.ones(1, 2)).sum().backward()


@breaks(2)
def one_batch_more_on_one_rank(rank, n):
    """Rank 0 waits in all_reduce for rank 1, which has finished without calling it once more."""
    weight = ones()
    for _ in range(5 - rank):
        dist.all_reduce(weight)


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
    """rank 1 was killed by SIGKILL (often the system, out of memory, or kill -9)"""
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
    """rank 1 was killed by SIGABRT (often gloo: a send and its recv had different sizes)"""
    message(rank, ones(4), ones(2))


# --- what only checked mode finds: wrong results, or a crash ---


@breaks(2, error="RankError", check=True)
def checked_sizes_of_a_message(rank, n):
    """The two ends of a message from rank 0 to rank 1 do not fit: float32[4] is sent, float32[2] is to receive it."""
    message(rank, ones(4), ones(2))


@breaks(2, error="RankError", check=True)
def checked_types_of_a_message(rank, n):
    """The two ends of a message from rank 0 to rank 1 do not fit: int32[2] is sent, float32[2] is to receive it."""
    if rank == 0:
        dist.send(ones(2, torch.int32), dst=1)
    elif rank == 1:
        dist.irecv(ones(2), src=0).wait()


@breaks(2, error="RankError", check=True)
def checked_reduce_ops(rank, n):
    """The ranks do not agree in all_reduce: rank 0 has op=MAX,"""
    dist.all_reduce(ones(), op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)


@breaks(3, error="RankError", check=True)
def checked_types_of_a_collective(rank, n):
    """The ranks do not agree in all_reduce: rank 1 has int32[2], ranks 0 and 2 have float32[2]."""
    dist.all_reduce(ones(2, torch.int32 if rank == 1 else torch.float32))


@breaks(2, error="RankError", check=True)
def checked_roots(rank, n):
    """The ranks do not agree in reduce:"""
    dist.reduce(ones(), dst=0 if rank == 0 else 1)


@breaks(3, error="RankError", check=True)
def checked_splits_of_all_to_all(rank, n):
    """The ranks do not agree in all_to_all: rank 0 sends 3 elements to rank 2, which expects 2 elements."""
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
