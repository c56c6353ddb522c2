"""The exercises of lab 04: what messages and collectives cost, and how to hide it."""

import time

import torch
import torch.distributed as dist

from distlab.checking import (
    COLLECTIVES,
    Limits,
    exercise,
    formula,
    gathered,
    on_rank,
    question,
    returned,
)


def _tensors_of_shapes(rank, n, shapes):
    """A list of float32 tensors: on rank 0 of the numbers 0, 1, 2 and so on."""
    tensors = []
    for shape in shapes:
        numel = torch.Size(shape).numel()
        tensor = torch.arange(float(numel)) - 99 * rank
        tensors.append(tensor.reshape(shape))
    return (tensors,)


def _tens_and_rounds(rank, n, rounds):
    """Two numbers, and how many times they go there and back."""
    return torch.tensor([10.0, 10.0]), rounds


@exercise(
    "04",
    worlds=(2,),
    forbids=COLLECTIVES,
    cases=(2, 1, 5),
    given=_tens_and_rounds,
    trial=returned,
)
def ping_pong(tensor, rounds):
    """Send the tensor from rank 0 to rank 1, which adds 1 to its first number and sends it back,
    `rounds` times.

    Rank 0 returns it; the others return nothing. No other rank takes part.

    Title: 1.1 Ping-pong
    Hint: Both ranks run the same loop; in it, rank 0 sends and then receives, and rank 1 receives
    and then sends.
    Hint: Both may receive into `tensor` itself. `tensor[0] += 1` adds 1 to its first number.
    """
    rank = dist.get_rank()
    for _ in range(rounds):
        if rank == 0:
            dist.send(tensor, dst=1)
            dist.recv(tensor, src=1)
        elif rank == 1:
            dist.recv(tensor, src=0)
            tensor[0] += 1
            dist.send(tensor, dst=0)
    return on_rank(0, tensor)


@question("04", 40_000.0)
def half_of_the_bandwidth(answer):
    """A message of m bytes takes 20 µs + m * 0.5 ns. At what size in bytes does it reach half of
    the full bandwidth?

    Title: 1.2 Half of the bandwidth
    Hint: At half of the bandwidth a message takes twice the time that its bytes alone would take.
    Hint: At that size both terms are equal: 20 µs and m * 0.5 ns.

    Why: At alpha / beta bytes both terms are equal, so the message takes twice the time of its
    bytes alone.
    """
    return f"20 µs + {answer} * 0.5 ns is not twice {answer} * 0.5 ns."


@exercise(
    "04",
    worlds=(2,),
    forbids=COLLECTIVES,
    limits=Limits(messages=1),
    cases=([(4,)], [(2, 3), (3,)], [(5,), (1, 1), (2, 2, 2), ()]),
    given=_tensors_of_shapes,
    trial=returned,
)
def one_bucket(tensors):
    """Send a list of float32 tensors from rank 0 to rank 1 in a single message; rank 1 returns an
    equal list; rank 0 returns nothing.

    Rank 1 has a list of tensors of the same shapes.

    Title: 3.1 One bucket
    Hint: `torch.cat([t.flatten() for t in tensors])` lays all of them end to end.
    Hint: `bucket.split([t.numel() for t in tensors])` cuts the bucket up again; `reshape` gives
    each part its shape.

    Limit: Is every tensor sent on its own?
    """
    return on_rank(1, gathered(tensors)[0])


TREES = (
    (4, 2**20, 5e-6, 8e-11),
    (8, 100, 1e-3, 0.0),
    (5, 2**20, 5e-6, 8e-11),
    (1, 64, 1.0, 1.0),
    (64, 10, 0.5, 1.0),
)


@formula("04", *TREES)
def broadcast_seconds(n, num_bytes, alpha, beta):
    """Return the seconds that a tree needs to send `num_bytes` bytes from one rank to all n ranks.

    A message of m bytes takes `alpha + beta * m`, and each step of the tree doubles the number of
    ranks that have them.

    Title: 4.1 The cost of a broadcast
    Hint: How many steps are needed until 2, 4, 8 ranks have the bytes?
    Hint: 2 steps reach only 4 of 5 ranks: it takes `math.ceil(math.log2(n))` steps, each a message
    of all bytes.
    """
    steps = (n - 1).bit_length()
    return steps * (alpha + beta * num_bytes)


def _try_with_rank_0_late(fn, tensor):
    """Call fn(tensor, compute) where rank 0 begins once rank 1 computes.

    Rank 1 computes until rank 0 has ended, so an all-reduce that begins only after `compute`, or is
    waited for before it, never ends.
    """
    rank = dist.get_rank()
    signal = torch.zeros(1)

    def compute():
        if rank == 1:
            dist.send(signal, dst=0)
            dist.recv(signal, src=0)
        return 0.5

    if rank == 0:
        dist.recv(signal, src=1)
        time.sleep(0.02)  # longer than a rank that does not wait for the sum needs to return
    result = fn(tensor, compute)
    if rank == 0:
        dist.send(signal, dst=1)
    return result


@exercise("04", worlds=(2, 3, 4), cases=(8, 1), trial=_try_with_rank_0_late)
def while_it_travels(tensor, compute):
    """All-reduce `tensor` while `compute()` runs, and return the sum plus what `compute` returned.

    The check lets rank 0 begin only once rank 1 computes, and rank 1 computes until rank 0 has
    finished.

    Title: 5.1 Compute while it travels
    Hint: `async_op=True` makes the call return at once, with a `Work`.
    Hint: Three steps: start the all-reduce, call `compute()`, wait for the work. Only then read
    `tensor`.

    Stuck: Rank 0 begins only when rank 1 computes. Does the all-reduce begin before `compute()`,
    and the wait after?
    """
    work = dist.all_reduce(tensor, async_op=True)
    more = compute()
    work.wait()
    return tensor + more
