"""The exercises of lab 21: gradients that are sent with fewer bits."""

import torch
import torch.distributed as dist

from distlab.checking import Limits, as_they_are, exercise
from distlab_course.exercises import ddp_trials


@exercise(
    "21",
    cases=((1,), (30,)),
    given=as_they_are,
    trial=ddp_trials.try_half_hook,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def half_hook(state, bucket):
    """A hook that sends a bucket as `torch.bfloat16` without waiting, and returns a Future of the
    average.

    `bucket.buffer()` is a flat tensor of float32. At most 2 bytes a number may be sent, and no
    number of the average may be wrong by more than 2 % of the largest.
    `ddp.register_comm_hook(None, half_hook)` makes DDP use it.

    Title: 1.1 A hook that sends half
    Hint: `dist.all_reduce(half, async_op=True)` returns at once; its `get_future()` is a Future of
    a list of tensors.
    Hint: `future.then(fn)` is a Future of `fn(future)`, where `future.value()` is that list.
    Hint: In `fn`, divide by `world_size` and copy into the buffer, which is float32:
    `bucket.buffer().copy_(...)`.
    """
    half = bucket.buffer().bfloat16()
    work = dist.all_reduce(half, async_op=True)

    def average(done):
        total = done.value()[0]
        return bucket.buffer().copy_(total).div_(dist.get_world_size())

    return work.get_future().then(average)


def _one_round(n, length, item):
    """The bytes of a round: of int8 in both halves of a ring, and of a largest value."""
    return Limits(2 * length + 64)


def _all_rounds(n, length, item):
    """The bytes of all rounds."""
    return Limits(ddp_trials.ROUNDS * (2 * length + 64))


@exercise(
    "21",
    limits=_one_round,
    cases=(7, 100, 1000),
    given=ddp_trials.gradient_of_rank,
    trial=ddp_trials.try_once,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def average_in_bytes(flat):
    """Replace `flat`, float32, by its average over the ranks, and send 8 bits a number.

    The ranks find the largest absolute value with an all-reduce of one number. Each rounds its
    numbers to whole steps of the same size, as `torch.int8`, and the sum must fit into 8 bits as
    well. No number may be wrong by more than 2 % of that largest value.

    Title: 2.1 8 bits a number
    Hint: int8 goes from -128 to 127. How many steps may each of n ranks use, so that no sum leaves
    that range?
    Hint: `step = highest / (127 // world_size)`, and `(flat / step).round().to(torch.int8)` is what
    is sent.

    Limit: Is everything that you send of type torch.int8, except for one number?
    """
    with_feedback.function(flat, torch.zeros_like(flat))


@exercise(
    "21",
    limits=_all_rounds,
    cases=(100, 1000),
    given=ddp_trials.gradient_of_rank,
    trial=ddp_trials.try_rounds,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def with_feedback(flat, residual):
    """Replace `flat` by its average over the ranks in 8 bits a number, with error feedback.

    `residual` has the shape of `flat` and belongs to this rank. Add it to `flat` before you round,
    and leave in it what rounding takes away. It is called 8 times with the same gradient: the sum
    of the 8 averages may be wrong by no more than 2 % of the largest value.

    Title: 2.2 Error feedback
    Hint: You send `steps * step`. What did you mean to send? The difference is the new residual.
    Hint: `residual.copy_(...)` writes into the tensor; `residual = ...` would only rename it here.
    Hint: Compute the residual before the all-reduce, because that replaces your `steps` by the sum
    of all ranks.

    Limit: Is everything that you send of type torch.int8, except for one number?
    """
    flat += residual
    highest = flat.abs().max()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    step = highest / (127 // dist.get_world_size())
    steps = (flat / step).round().to(torch.int8)
    residual.copy_(flat - steps * step)
    dist.all_reduce(steps)
    flat.copy_(steps * step / dist.get_world_size())
