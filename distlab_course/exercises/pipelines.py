"""The exercises of lab 52: bubbles, schedules, several stages a rank, shared weights."""

from itertools import combinations, pairwise

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import COLLECTIVES, Limits, Seen, exercise, formula, gathered, numbers


def _try_tied(fn, gradient):
    """The gradient of a weight after `fn(weight)`; ranks between the ends have no copy of it."""
    if gradient is None:
        fn(None)
        return "no copy"
    weight = nn.Parameter(torch.zeros_like(gradient))
    weight.grad = gradient.clone()
    fn(weight)
    return weight.grad


def _gradient_at_ends(rank, n, case):
    """A gradient on the first and the last rank, None on the others."""
    if rank in (0, n - 1):
        return numbers(rank, n, case)
    return (None,)


def _one_message(n, length, item):
    """At most one message, of the whole tensor."""
    return Limits(length * item, messages=1)


def _try_schedule(fn, m):
    """The order in which `fn` calls forward and backward, which exchange messages."""
    before = dist.get_rank() - 1
    after = dist.get_rank() + 1
    calls = []
    sends = []

    def forward(i):
        receive(before)
        calls.append(f"F{i}")
        send_to(after)

    def backward(i):
        receive(after)
        calls.append(f"B{i}")
        send_to(before)

    def receive(src):
        if 0 <= src < dist.get_world_size():
            dist.recv(torch.empty(1), src=src)

    def send_to(dst):
        if 0 <= dst < dist.get_world_size():
            sends.append(dist.isend(torch.ones(1), dst=dst))

    fn(forward, backward, m)
    for send in sends:
        send.wait()
    return Seen(" ".join(calls))


@formula("52", (4, 0.25), (8, 0.05), (5, 0.3), (2, 0.75), (16, 0.1), (1, 0.2))
def enough_micro_batches(p, share):
    """Return the smallest number of micro-batches with which a pipeline of `p` stages is idle for
    at most `share` of the time. For 4 stages and a quarter of the time it is 9; for 8 stages and 5
    % it is 133.

    Title: 2.1 Enough micro-batches
    Hint: The idle share is (p - 1) / (m + p - 1): start with m = 1 and count up.
    Hint: There is always at least one micro-batch, even if there is no bubble to fill.
    """
    m = 1
    while (p - 1) / (m + p - 1) > share:
        m += 1
    return m


def _try_interleaved(fn, m):
    """Which of 2 n stages have gradients on this rank after `fn`, and these."""
    torch.manual_seed(4)
    stages = []
    for _ in range(2 * dist.get_world_size()):
        stages.append(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    batch, targets = torch.randn(2, 4 * m, 3)
    fn(stages, batch, targets, nn.functional.mse_loss, m)
    computed = []
    gradients = []
    for number, stage in enumerate(stages):
        if stage[0].weight.grad is not None:
            computed.append(number)
            gradients += [parameter.grad for parameter in stage.parameters()]
    why = ""
    if len(computed) != 2:
        why = "A rank computes its own two stages, and no other rank's."
    return Seen(f"gradients of stages {computed}", why), gradients


def _micro_batches_that_divide(rank, n, m):
    """A multiple of the number of ranks, as interleaved stages need it."""
    return (m * n,)


@exercise(
    "52", worlds=(2, 4), cases=(1, 2), given=_micro_batches_that_divide, trial=_try_interleaved
)
def interleaved_step(stages, batch, targets, loss, m):
    """Make one step of torch's interleaved 1F1B with `m` micro-batches: each rank gets the
    gradients of its two stages.

    `stages` are twice as many modules as there are ranks, the same on all ranks. Rank r computes
    stages r and r + world_size, and wraps only these two. All ranks are given the batch and the
    targets.

    Title: 3.1 An interleaved step
    Hint: `pipelining.PipelineStage(stages[number], number, len(stages), torch.device("cpu"))`, for
    two numbers.
    Hint: `pipelining.ScheduleInterleaved1F1B([one, two], m, loss_fn=loss)` takes a list of both.
    Hint: Rank 0 calls `step(batch)`, the last rank `step(target=targets)`, and a rank between them
    `step()`.

    Stuck: Does every rank call `step`, even those that pass neither batch nor targets?
    """
    whole = nn.Sequential(*stages)
    loss(whole(batch), targets).backward()
    for number, stage in enumerate(stages):
        if number % dist.get_world_size() != dist.get_rank():
            stage.zero_grad()


def _micro_batches(rank, n, m):
    """A number of micro-batches."""
    return (m,)


@exercise("52", cases=(5, 2, 1), given=_micro_batches, trial=_try_schedule)
def one_forward_one_backward(forward, backward, m):
    """Call `forward(i)` and `backward(i)` for each of the `m` micro-batches, in the order of 1F1B.

    With p ranks, rank r may have at most p - r micro-batches alive. It calls a backward only when
    it has that many, or when no forwards are left.

    Title: 4.1 One forward, one backward
    Hint: Rank r begins with p - r forwards, or with all m if there are fewer.
    Hint: Then it alternates backward, forward, backward, forward ... until no forwards are left.
    Hint: The last rank has only one micro-batch alive, so it alternates from the start.

    Stuck: Which rank waits for a message that its neighbour sends only later? All ranks must follow
    one schedule.
    """
    ahead = min(m, dist.get_world_size() - dist.get_rank()) - 1
    for i in range(m + ahead):
        if i < m:
            forward(i)
        if i >= ahead:
            backward(i - ahead)


@exercise(
    "52",
    cases=(4, 7, (3, torch.float64)),
    given=_gradient_at_ends,
    trial=_try_tied,
    forbids=COLLECTIVES,
    limits=_one_message,
)
def tie_weights(weight):
    """Make `weight.grad` on rank 0 and on the last rank the sum of both. On the ranks between,
    `weight` is None.

    No rank may send more than one message, and with one rank there is nothing to do.

    Title: 7.1 Tied weights
    Hint: Rank 0 and the last rank swap their gradients, and each adds the one that it receives.
    Hint: If both call `dist.send` first, both wait forever: start with `dist.isend`, receive, and
    wait for the send.
    Hint: A tensor must not change while it is being sent: add only after the send has ended.

    Stuck: Do both ranks send first, and wait until the other receives?
    """
    mine = None if weight is None else weight.grad
    parts = [part for part in gathered(mine) if part is not None]
    if weight is not None:
        weight.grad = sum(parts)


@formula(
    "52",
    ([3, 1, 1, 1, 1, 1, 4], 3),
    ([1, 1, 1, 1, 1, 1, 1], 4),
    ([2, 3, 5, 1, 6, 2, 2, 4], 4),
    ([5, 2], 1),
)
def slowest_stage(costs, p):
    """Cut the layers, whose times are `costs`, into `p` consecutive stages, none of them empty, so
    that the slowest stage takes as little time as possible. Return the time of that stage. For 3,
    1, 1, 1, 1, 1, 4 and p = 3 it is 4.

    Title: 8.1 Balanced stages
    Hint: `itertools.combinations(range(1, len(costs)), p - 1)` gives all ways to cut.
    Hint: For each way, the slowest stage is the `max` of the sums; the best way has the `min` of
    these.
    """
    best = sum(costs)
    for cuts in combinations(range(1, len(costs)), p - 1):
        stages = pairwise((0, *cuts, len(costs)))
        seconds = [sum(costs[first:end]) for first, end in stages]
        best = min(best, max(seconds))
    return best
