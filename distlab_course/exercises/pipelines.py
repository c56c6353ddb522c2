"""The exercises of notebook 09 on pipelines: bubbles, weights on two stages, schedules, and what to choose."""

from itertools import combinations, pairwise

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import COLLECTIVES, Limits, Seen, exercise, formula, gathered, numbers, question


def _tied(fn, gradient):
    """The gradient of a weight after `fn(weight)`."""
    weight = None if gradient is None else nn.Parameter(torch.zeros_like(gradient))
    if weight is not None:
        weight.grad = gradient.clone()
    fn(weight)
    return "no copy" if weight is None else weight.grad


def _order(fn, m):
    """The order in which `fn` calls forward and backward, which exchange messages with the neighbours."""
    rank, p, calls, sends = dist.get_rank(), dist.get_world_size(), [], []

    def call(kind, i, source, dst):
        if 0 <= source < p:
            dist.recv(torch.empty(1), src=source)
        calls.append(f"{kind}{i}")
        if 0 <= dst < p:
            sends.append(dist.isend(torch.ones(1), dst=dst))

    fn(lambda i: call("F", i, rank - 1, rank + 1), lambda i: call("B", i, rank + 1, rank - 1), m)
    for send in sends:
        send.wait()
    return Seen(" ".join(calls))


@formula("09", (4, 0.25), (8, 0.05), (5, 0.3), (2, 0.75), (16, 0.1), (1, 0.2))
def enough_micro_batches(p, share):
    """Return the smallest number of micro-batches with which a pipeline of `p` stages is idle for at most `share` of
    the time. With 4 stages and a quarter of the time it is 9; with 8 stages and 5 % it is 133.

    Hint: The idle share is (p - 1) / (m + p - 1): begin with m = 1, and count up.
    Hint: There is always at least one micro-batch, even if there is nothing to fill.
    """
    m = 1
    while (p - 1) / (m + p - 1) > share:
        m += 1
    return m


@exercise(
    "09",
    cases=(4, 7, (3, torch.float64)),
    given=lambda rank, n, case: numbers(rank, n, case) if rank in (0, n - 1) else (None,),
    trial=_tied,
    forbids=COLLECTIVES,
    limits=lambda n, length, item: Limits(length * item, messages=1),
)
def tie_weights(weight):
    """Make `weight.grad` on rank 0 and on the last rank the sum of both. On the ranks between, `weight` is None.

    No rank may send more than one message, and on one rank there is nothing to do.

    Hint: Rank 0 and the last rank swap their gradients, and each adds what has come.
    Hint: If both call `dist.send` first, both wait for ever: begin with `dist.isend`, receive, and wait for the send.
    Hint: What is being sent must not change meanwhile: add only after the send has ended.

    Stuck: Do both ranks send first, and wait until the other receives?
    """
    parts = [part for part in gathered(None if weight is None else weight.grad) if part is not None]
    if weight is not None:
        weight.grad = sum(parts)


@exercise("09", cases=(5, 2, 1), given=lambda rank, n, m: (m,), trial=_order)
def one_forward_one_backward(forward, backward, m):
    """Call `forward(i)` and `backward(i)` for each of the `m` micro-batches, in the order of 1F1B.

    With p ranks, rank r may have p - r micro-batches alive, and never more. It calls a backward only when it has that
    many, or when no forwards are left.

    Hint: Rank r begins with p - r forwards, or with m of them if there are no more.
    Hint: Then follow backward, forward, backward, forward ... until there are no forwards left.
    Hint: The last rank has one forward in advance, and so alternates from the start.

    Stuck: Which rank waits for a message that its neighbour sends only later? All ranks must follow one schedule.
    """
    ahead = min(m, dist.get_world_size() - dist.get_rank())
    for i in range(ahead):
        forward(i)
    for i in range(m):
        backward(i)
        if i + ahead < m:
            forward(i + ahead)


@formula("09", ([3, 1, 1, 1, 1, 1, 4], 3), ([1, 1, 1, 1, 1, 1, 1], 4), ([2, 3, 5, 1, 6, 2, 2, 4], 4), ([5, 2], 1))
def slowest_stage(costs, p):
    """Cut the layers, whose times are `costs`, into `p` consecutive stages, none of them empty, so that the slowest
    stage takes as little time as possible. Return the time of that stage. With 3, 1, 1, 1, 1, 1, 4 and p = 3 it is 4.

    Hint: `itertools.combinations(range(1, len(costs)), p - 1)` gives all ways to cut.
    Hint: Of each way, the slowest stage is the `max` of the sums; of all ways, the best is the `min` of these.
    """
    ways = (tuple(pairwise((0, *cuts, len(costs)))) for cuts in combinations(range(1, len(costs)), p - 1))
    return min(max(sum(costs[a:b]) for a, b in way) for way in ways)


@question("09", 224)
def tensor_against_pipeline(answer):
    """A transformer has 64 layers, and there are 8 ranks. How many times as many bytes does a rank send for a
    micro-batch with tensor parallelism as an inner rank of a pipeline does? With tensor parallelism each layer makes 2
    ring all-reduces of the activation in the forward, and 2 in the backward.

    Hint: In a ring all-reduce of n ranks, a rank sends 2 (n - 1) / n times the tensor.
    Hint: An inner rank of a pipeline sends one activation to the next rank, and one gradient to the one before.

    Not 448: That is what tensor parallelism sends: what does the pipeline send?
    Not 112: An activation and a gradient are two: has each layer 4 all-reduces?
    Not 128: How much of the tensor does a rank send in a ring all-reduce?
    Not 28: With tensor parallelism each rank works on all 64 layers.
    Otherwise: Count the activations that a rank sends in each.

    Why: 64 layers x 4 all-reduces x 1.75 are 448 activations, and the pipeline sends 2, whatever its stages contain.
    """
