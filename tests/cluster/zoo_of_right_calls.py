"""Correct programs with remote procedure calls: each returns True on every rank.

test_zoo.py starts RPC anew for each, with zoo_of_remote_calls.remotely.
"""

import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

LONG = 0.8  # seconds: longer than a deadlock needs to be named in these tests


def everybody_calls_everybody(rank, n):
    got = [rpc.rpc_sync(f"w{r}", torch.add, (torch.tensor(rank), r)) for r in range(n)]
    return [int(value) for value in got] == [rank + r for r in range(n)]


def calls_that_call(rank, n):
    return rpc.rpc_sync(f"w{(rank + 1) % n}", around, (n, n)) == n


def around(left, n):
    mine = dist.get_rank()
    return 0 if left == 0 else 1 + rpc.rpc_sync(f"w{(mine + 1) % n}", around, (left - 1, n))


def a_served_function_that_sleeps(rank, n):
    return rank > 0 or rpc.rpc_sync("w1", time.sleep, (LONG,)) is None


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


def futures_in_any_order(rank, n):
    futures = [rpc.rpc_async(f"w{r}", pow, (r, 2)) for r in range(n)]
    return [future.wait() for future in reversed(futures)] == [r**2 for r in reversed(range(n))]


def all_futures_at_once(rank, n):
    futures = [rpc.rpc_async(f"w{r}", max, (rank, r)) for r in range(n)]
    return torch.futures.wait_all(futures) == [max(rank, r) for r in range(n)]


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


def an_object_on_another_rank(rank, n):
    counter = rpc.remote(f"w{n - 1}", Counter)
    return [counter.rpc_sync().add(2), counter.remote().add(1).to_here(), counter.owner().id] == [
        n - 1
    ] * 3


def a_reference_in_third_hands(rank, n):
    counter = rpc.remote("w0", Counter)
    return rpc.rpc_sync(f"w{(rank + 1) % n}", lambda held: held.rpc_sync().add(1), (counter,)) == 0


def an_answer_that_a_timer_gives(rank, n):
    return rank > 0 or rpc.remote("w1", Counter).rpc_sync().add_later(1) == 1


def an_own_value_for_others(rank, n):
    mine = rpc.RRef(torch.tensor(rank))
    return (
        int(rpc.rpc_sync(f"w{(rank + 1) % n}", lambda held: held.to_here() + 1, (mine,)))
        == rank + 1
    )


def calls_of_itself(rank, n):
    return (
        rpc.rpc_sync(f"w{rank}", dist.get_rank) == rank
        and rpc.remote(rank, pow, (2, 2)).to_here() == 4
    )


def variables_of_the_callee(rank, n):
    vars(sys.modules["__main__"])["own"] = 10 * rank
    dist.barrier()
    return rpc.rpc_sync(f"w{(rank + 1) % n}", lambda: own) == 10 * ((rank + 1) % n)  # noqa: F821


def a_gradient_through_a_call(rank, n):
    with dist_autograd.context() as context:
        weight = torch.tensor([1.0 + rank], requires_grad=True)
        product = rpc.rpc_sync(f"w{(rank + 1) % n}", torch.mul, (weight, weight))
        dist_autograd.backward(context, [product.sum()])
        return dist_autograd.get_gradients(context)[weight].tolist() == [2.0 * (1 + rank)]


def collectives_beside_calls(rank, n):
    total = torch.tensor([float(rank)])
    future = rpc.rpc_async(f"w{(rank + 1) % n}", dist.get_rank)
    dist.all_reduce(total)
    return float(total) == n * (n - 1) / 2 and future.wait() == (rank + 1) % n


def served_collectives_of_all_ranks(rank, n):
    def of_all():
        total = torch.ones(1)
        dist.all_reduce(total)
        return int(total)

    return (
        rank > 0
        or torch.futures.wait_all([rpc.rpc_async(f"w{r}", of_all) for r in range(n)]) == [n] * n
    )


def an_exception_that_is_expected(rank, n):
    try:
        rpc.rpc_sync(f"w{(rank + 1) % n}", int, ("x",))
    except RuntimeError as error:
        return str(error).startswith("ValueError: invalid literal")


def a_shutdown_and_another_start(rank, n):
    dist.barrier()
    rpc.shutdown()
    rpc.init_rpc(f"again{rank}", rank=rank, world_size=n)
    return rpc.rpc_sync(f"again{(rank + 1) % n}", dist.get_rank) == (rank + 1) % n


def workers_on_two_of_the_ranks(rank, n):
    dist.barrier()
    rpc.shutdown()
    if rank < 2:
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=2)
        answer = rpc.rpc_sync(f"w{1 - rank}", dist.get_rank)
        rpc.shutdown()
        return answer == 1 - rank
    return True
