"""Programs with remote procedure calls: broken ones that join `ZOO`, and right ones, which nothing may call stuck.

Each starts RPC anew on all ranks, so that every one of them is also a test of starting it again after the last.
"""

import functools
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from tests.cluster.zoo import breaks, ones

RIGHT_REMOTELY = []
LONG = 0.8  # seconds: longer than a deadlock needs to be named in these tests


def remotely(program, threads=16):
    """The program with an RPC worker on every rank, "w0" and so on."""

    @functools.wraps(program)
    def call(rank, n):
        start(rank, n, threads)
        return program(rank, n)

    return call


def with_threads(threads):
    return functools.partial(remotely, threads=threads)


def start(rank, n, threads=16):
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown()
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=threads)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=n, rpc_backend_options=options)


def right(program):
    RIGHT_REMOTELY.append(program)
    return program


# --- broken ---


def ask_back(depth):
    mine = dist.get_rank()
    return depth if depth == 0 else rpc.rpc_sync(f"w{1 - mine}", ask_back, (depth - 1,))


@breaks(2)
@with_threads(1)
def a_circle_of_calls_on_one_thread(rank, n):
    """but the one thread of rank 1 that serves calls waits. Rank 1, in ask_back(...) for rank 0, waits for rank 0:"""
    if rank == 0:
        rpc.rpc_sync("w1", ask_back, (3,))


def receive(src):
    dist.recv(ones(), src=src)


@breaks(3)
@remotely
def a_served_recv_without_a_send(rank, n):
    """Rank 1, in receive(...) for rank 0, waits for a message from rank 2, which has finished without sending it."""
    if rank == 0:
        rpc.rpc_sync("w1", receive, (2,))


@breaks(2)
@remotely
def a_served_collective_on_one_rank(rank, n):
    """Rank 1, in all_reduce(...) for rank 0, waits in all_reduce() for rank 0"""
    if rank == 0:
        rpc.rpc_async("w1", dist.all_reduce, (ones(),)).wait()


@rpc.functions.async_execution
def when_full():
    return torch.futures.Future()


@breaks(2)
@remotely
def a_batch_that_never_fills(rank, n):
    """Rank 0 waits for rank 1: when_full(...), which has returned a Future that nobody completes."""
    if rank == 0:
        rpc.rpc_sync("w1", when_full)


@breaks(2)
@remotely
def many_batches_that_never_fill(rank, n):
    """Rank 0 waits for rank 1: when_full(...)"""
    if rank == 0:
        torch.futures.wait_all([rpc.rpc_async("w1", when_full) for _ in range(3)])


@breaks(3)
@with_threads(1)
def a_pool_that_is_full(rank, n):
    """but the one thread of rank 1 that serves calls waits."""
    if rank == 0:
        first = rpc.rpc_async("w1", receive, (2,))
        rpc.rpc_sync("w1", ask_back, (0,))
        first.wait()


@breaks(3)
@remotely
def a_shutdown_that_one_rank_skips(rank, n):
    """in shutdown for rank 1, which has finished without calling it."""
    if rank != 1:
        rpc.shutdown()


@breaks(3)
@remotely
def a_start_that_one_rank_skips(rank, n):
    """in init_rpc for rank 2, which has finished without calling it."""
    rpc.shutdown()
    if rank != 2:
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=n)


@breaks(2)
@remotely
def a_remote_value_that_never_comes(rank, n):
    """Rank 0 waits for rank 1, in to_here."""
    if rank == 0:
        rpc.remote("w1", receive, (0,)).to_here()


@breaks(2)
@remotely
def a_recv_while_another_serves(rank, n):
    """Rank 1 waits in recv(src=0) for rank 0."""
    if rank == 0:
        rpc.rpc_sync("w1", when_full)
    else:
        dist.recv(ones(), src=0)


@breaks(2, error="RankError")
@remotely
def a_remote_exception(rank, n):
    """rank 0 raised RuntimeError: ValueError: no such thing\n  rank 1   line"""

    def refuse():
        raise ValueError("no such thing")

    if rank == 0:
        rpc.rpc_sync("w1", refuse)


@breaks(3, error="RankError")
@remotely
def an_exception_two_ranks_away(rank, n):
    """rank 0 raised RuntimeError: ZeroDivisionError: division by zero\n  rank 2   line"""

    def divide():
        return 1 / 0

    def pass_on():
        return rpc.rpc_sync("w2", divide)

    if rank == 0:
        rpc.rpc_async("w1", pass_on).wait()


@breaks(2, error="RankDied")
@remotely
def a_callee_that_dies(rank, n):
    """rank 1 ended with exit status 3"""
    if rank == 0:
        rpc.rpc_sync("w1", os._exit, (3,))


@breaks(2, error="RankError")
@remotely
def a_worker_that_is_not_there(rank, n):
    """to must be the name, WorkerInfo or id of a worker ('w0', 'w1'), got 'w2'."""
    if rank == 0:
        rpc.rpc_sync("w2", ask_back, (0,))


@breaks(3, error="RankError")
@remotely
def one_name_for_two_workers(rank, n):
    """name must be another one on every rank, got 'w'. It is that of ranks 0 and 1"""
    rpc.shutdown()
    rpc.init_rpc("w" if rank < 2 else "v", rank=rank, world_size=n)


@breaks(2, error="RankError")
@remotely
def a_second_start(rank, n):
    """RPC runs on rank 0 already, as "w0". Call rpc.shutdown() on every rank first."""
    if rank == 0:
        rpc.init_rpc("w0", rank=rank, world_size=n)


@breaks(2, error="RankError")
@remotely
def a_result_that_cannot_be_sent(rank, n):
    """The result of eval on rank 1 cannot be sent (TypeError: cannot pickle"""
    if rank == 0:
        rpc.rpc_sync("w1", eval, ("open('/dev/null')",))


@breaks(2, error="RankError")
@remotely
def a_reference_after_the_shutdown(rank, n):
    """This RRef belongs to an RPC that was shut down: make a new one with rpc.remote."""
    reference = rpc.remote("w1", ask_back, (0,)) if rank == 0 else None
    rpc.shutdown()
    if rank == 0:
        reference.to_here()


@breaks(2, error="RankError")
@remotely
def a_call_that_is_too_slow(rank, n):
    """timeout"""
    if rank == 0:
        rpc.rpc_sync("w1", time.sleep, (0.5,), timeout=0.1)


@breaks(2, error="RankError")
@remotely
def a_loss_without_a_context(rank, n):
    """requires_grad not set on root"""
    if rank == 0:
        loss = rpc.rpc_sync("w1", torch.add, (ones(), 1)).sum()
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [loss])


# --- right ---


@right
def everybody_calls_everybody(rank, n):
    got = [rpc.rpc_sync(f"w{r}", torch.add, (torch.tensor(rank), r)) for r in range(n)]
    return [int(value) for value in got] == [rank + r for r in range(n)]


@right
def calls_that_call(rank, n):
    return rpc.rpc_sync(f"w{(rank + 1) % n}", around, (n, n)) == n


def around(left, n):
    mine = dist.get_rank()
    return 0 if left == 0 else 1 + rpc.rpc_sync(f"w{(mine + 1) % n}", around, (left - 1, n))


@right
def a_served_function_that_sleeps(rank, n):
    return rank > 0 or rpc.rpc_sync("w1", time.sleep, (LONG,)) is None


@right
def a_served_function_that_computes(rank, n):
    def count():
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            pass
        return dist.get_rank()

    return rank > 0 or rpc.rpc_sync("w1", count) == 1


@right
def a_served_function_that_sends_later(rank, n):
    """The rank that called it has finished, its own has, too, and a third waits for the message."""

    def send_later():
        time.sleep(LONG)
        dist.send(torch.ones(1), dst=0)

    if rank == n - 1:
        globals()["pending"] = rpc.rpc_async("w1", send_later)
    elif rank == 0:
        dist.recv(torch.zeros(1), src=1)
    return True


@right
def futures_in_any_order(rank, n):
    futures = [rpc.rpc_async(f"w{r}", pow, (r, 2)) for r in range(n)]
    return [future.wait() for future in reversed(futures)] == [r**2 for r in reversed(range(n))]


@right
def all_futures_at_once(rank, n):
    futures = [rpc.rpc_async(f"w{r}", max, (rank, r)) for r in range(n)]
    return torch.futures.wait_all(futures) == [max(rank, r) for r in range(n)]


@right
def what_comes_after_a_future(rank, n):
    return rpc.rpc_async("w0", pow, (2, 3)).then(lambda done: done.value() + 1).wait() == 9


class Counter:
    def __init__(self):
        self.count, self.lock = 0, threading.Lock()

    def add(self, number):
        with self.lock:
            self.count += number
        return dist.get_rank()

    @rpc.functions.async_execution
    def add_later(self, number):
        done = torch.futures.Future()
        threading.Timer(LONG, lambda: done.set_result(self.add(number))).start()
        return done


@right
def an_object_on_another_rank(rank, n):
    counter = rpc.remote(f"w{n - 1}", Counter)
    return [counter.rpc_sync().add(2), counter.remote().add(1).to_here(), counter.owner().id] == [n - 1] * 3


@right
def a_reference_in_third_hands(rank, n):
    counter = rpc.remote("w0", Counter)
    return rpc.rpc_sync(f"w{(rank + 1) % n}", lambda held: held.rpc_sync().add(1), (counter,)) == 0


@right
def an_answer_that_a_timer_gives(rank, n):
    return rank > 0 or rpc.remote("w1", Counter).rpc_sync().add_later(1) == 1


@right
def an_own_value_for_others(rank, n):
    mine = rpc.RRef(torch.tensor(rank))
    return int(rpc.rpc_sync(f"w{(rank + 1) % n}", lambda held: held.to_here() + 1, (mine,))) == rank + 1


@right
def calls_of_itself(rank, n):
    return rpc.rpc_sync(f"w{rank}", dist.get_rank) == rank and rpc.remote(rank, pow, (2, 2)).to_here() == 4


@right
def variables_of_the_callee(rank, n):
    vars(sys.modules["__main__"])["own"] = 10 * rank
    dist.barrier()
    return rpc.rpc_sync(f"w{(rank + 1) % n}", lambda: own) == 10 * ((rank + 1) % n)  # noqa: F821


@right
def a_gradient_through_a_call(rank, n):
    with dist_autograd.context() as context:
        weight = torch.tensor([1.0 + rank], requires_grad=True)
        product = rpc.rpc_sync(f"w{(rank + 1) % n}", torch.mul, (weight, weight))
        dist_autograd.backward(context, [product.sum()])
        return dist_autograd.get_gradients(context)[weight].tolist() == [2.0 * (1 + rank)]


@right
def collectives_beside_calls(rank, n):
    total = torch.tensor([float(rank)])
    future = rpc.rpc_async(f"w{(rank + 1) % n}", dist.get_rank)
    dist.all_reduce(total)
    return float(total) == n * (n - 1) / 2 and future.wait() == (rank + 1) % n


@right
def served_collectives_of_all_ranks(rank, n):
    def of_all():
        total = torch.ones(1)
        dist.all_reduce(total)
        return int(total)

    return rank > 0 or torch.futures.wait_all([rpc.rpc_async(f"w{r}", of_all) for r in range(n)]) == [n] * n


@right
def a_timeout_that_is_expected(rank, n):
    if rank == 0:
        try:
            rpc.rpc_sync("w1", time.sleep, (0.3,), timeout=0.1)
        except RuntimeError as error:
            return "timeout" in str(error)
    return True


@right
def an_exception_that_is_expected(rank, n):
    try:
        rpc.rpc_sync(f"w{(rank + 1) % n}", int, ("x",))
    except RuntimeError as error:
        return str(error).startswith("ValueError: invalid literal")


@right
def a_shutdown_and_another_start(rank, n):
    dist.barrier()
    rpc.shutdown()
    rpc.init_rpc(f"again{rank}", rank=rank, world_size=n)
    return rpc.rpc_sync(f"again{(rank + 1) % n}", dist.get_rank) == (rank + 1) % n


@right
def workers_on_two_of_the_ranks(rank, n):
    dist.barrier()
    rpc.shutdown()
    if rank < 2:
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=2)
        answer = rpc.rpc_sync(f"w{1 - rank}", dist.get_rank)
        rpc.shutdown()
        return answer == 1 - rank
    return True
