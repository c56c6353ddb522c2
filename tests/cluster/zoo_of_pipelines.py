"""Broken and correct programs that split a model into stages; test_zoo.py runs them with zoo.py's.

A correct one returns whether its losses are those of one process.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from tests.cluster.zoo import breaks

BATCH = torch.arange(64.0).view(8, 8) / 64  # the whole batch, the same on every rank


def stages(n):
    """All layers of a pipeline of n stages."""
    torch.manual_seed(0)
    return [nn.Linear(8, 8) for _ in range(n)]


def step(schedule, rank, n, batch=BATCH):
    """One step of a pipeline; the losses of the micro-batches on its last stage."""
    losses = []
    given = {"target": batch, "losses": losses} if rank == n - 1 else {}
    schedule.step(*([batch] if rank == 0 else []), **given)
    return losses


def pipeline(rank, n, kind=ScheduleGPipe):
    stage = PipelineStage(stages(n)[rank], rank, n, torch.device("cpu"))
    return kind(stage, n_microbatches=4, loss_fn=F.mse_loss)


# --- broken ---

# before the first message
VOTE = "Ranks 0 and 2 wait in all_reduce for rank 1, which has finished without calling it."


@breaks(3, since=("2.15", VOTE))
def a_stage_that_does_not_take_its_step(rank, n):
    """Rank 2 waits for a message from rank 1, which has finished without sending it."""
    schedule = pipeline(rank, n)
    if rank != 1:
        step(schedule, rank, n)


MISFIT = (
    "rank 1 raised RuntimeError: addmm: mat1 and mat2 shapes cannot be multiplied (2x6 and 8x8)"
)


@breaks(2, error="RankError", since=("2.15", MISFIT))
def a_stage_that_gets_another_shape(rank, n):
    """rank 1 raised RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x6 and 8x8)"""
    stage = PipelineStage(nn.Linear(8, 6 if rank == 0 else 8), rank, n, torch.device("cpu"))
    step(ScheduleGPipe(stage, n_microbatches=4, loss_fn=F.mse_loss), rank, n)


# --- correct ---


def as_one_process(kind, rank, n, each=1):
    """Whether losses and gradients are those of one process; with `each` so many stages on every
    rank.
    """
    ours, alone = stages(each * n), stages(each * n)
    places = range(rank, each * n, n)
    own = [PipelineStage(ours[i], i, each * n, torch.device("cpu")) for i in places]
    losses = step(kind(own if each > 1 else own[0], n_microbatches=4, loss_fn=F.mse_loss), rank, n)
    loss = F.mse_loss(nn.Sequential(*alone)(BATCH), BATCH)
    loss.backward()
    pairs = [(ours[i].weight.grad, alone[i].weight.grad) for i in places]
    pairs += [(torch.stack(losses).mean(), loss)] if rank == n - 1 else []
    return all(torch.allclose(found, expected, atol=1e-6) for found, expected in pairs)


def gpipe(rank, n):
    return as_one_process(ScheduleGPipe, rank, n)


def one_forward_one_backward(rank, n):
    return as_one_process(Schedule1F1B, rank, n)


def interleaved_stages(rank, n):
    return as_one_process(ScheduleInterleaved1F1B, rank, n, each=2)


def a_schedule_without_bubble(rank, n):
    return as_one_process(ScheduleInterleavedZeroBubble, rank, n, each=2)
