"""Micro-batches of a pipeline that were repeated: the same is noted as of the whole program."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

import distlab
from distlab_course.engine import Engine
from distlab_course.pretraining import train
from distlab_course.sizes import Experts, Size
from distlab_predict.nodes import Recording
from distlab_predict.runs import run_of
from distlab_predict.torch_pipelines import can_repeat

SMALL = Size(64, 2, 4, 128, kv_heads=2, vocabulary=64)
DEEP = replace(SMALL, layers=4)
SIX = {"batch": 6, "microbatches": 6}  # interleaved stages need a multiple of the ranks
ADDED = {
    "engine": Engine(adds_in_products=True),
    "reduce_dtype": torch.bfloat16,
    "reshard": False,
    "recompute": "none",
}
EXPERTS = replace(SMALL, experts=Experts(8, 2, 32))
WIDTH = 16
MICROBATCHES = 8
NOTED = 3 if can_repeat() else MICROBATCHES  # passes that run


class Part(nn.Module):
    """A stage whose forward pass may do more than compute; `extra` says what."""

    def __init__(self, extra, calls):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.number = 0
        self.kept = torch.zeros(())
        self.extra = extra
        self.calls = calls

    def forward(self, given):
        self.calls.append(1)
        made = torch.relu(self.first(given))
        if self.extra == "counts":
            self.number += 1
            if self.number == 4:
                made = made * 2
        if self.extra == "prints":
            print("forward")
        if self.extra == "keeps":
            self.kept = made.detach().sum()
        return given + self.second(made)


def stages(rank, world_size, schedule="Schedule1F1B", number=1, extra="", wrap=None, copies=1):
    """Two steps, and how often each micro-batch's forward pass has run."""
    from torch.distributed import pipelining
    from torch.distributed.device_mesh import init_device_mesh

    shape = (world_size // copies, copies)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("stages", "copies"))
    own = mesh.get_local_rank("stages")
    length = mesh["stages"].size()
    calls = []
    made = []
    for place in range(own, length * number, length):
        part = Part(extra, Calls(calls))
        if wrap == "ddp":
            group = mesh.get_group("copies")
            part = nn.parallel.DistributedDataParallel(part, process_group=group)
        given = torch.empty(2, WIDTH, device="meta", requires_grad=place > 0)
        result = torch.empty(2, WIDTH, device="meta", requires_grad=True)
        made.append(
            pipelining.PipelineStage(
                part,
                place,
                length * number,
                torch.device("cpu"),
                input_args=(given,),
                output_args=(result,),
                group=mesh.get_group("stages"),
            )
        )
    kind = getattr(pipelining, schedule)
    runner = kind(made if number > 1 else made[0], MICROBATCHES, loss_fn=nn.functional.mse_loss)
    parameters = [parameter for stage in made for parameter in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        whole = torch.ones(2 * MICROBATCHES, WIDTH)
        inputs = [whole] if own == 0 else []
        losses = []
        targets = {"target": whole, "losses": losses} if own == length - 1 else {}
        runner.step(*inputs, **targets)
        optimizer.step()
    print(len(calls) // number)


class Calls:
    """A list that is not the module's own."""

    def __init__(self, calls):
        self._calls = calls

    def append(self, one):
        self._calls.append(one)


def both(program, ranks, roles, compiled=False):
    """What is noted with repetitions, and without."""
    run = run_of(program, ranks, roles, 1.0, compiled)
    outcomes = distlab.predict._recorder.record([run, replace(run, repeats=False)])
    recordings = []
    for own in outcomes:
        for outcome in own:
            assert isinstance(outcome, Recording), outcome.message
        # torch's warnings have times in them
        recordings.append([replace(outcome, warned="") for outcome in own])
    return recordings


def passes(recordings):
    """What the last line says that each rank has printed, and all else."""
    counts = []
    others = []
    for recording in recordings:
        *lines, last = recording.printed.splitlines()
        counts.append(int(last))
        others.append(replace(recording, printed="\n".join(lines)))
    return counts, others


@pytest.mark.parametrize(
    ("options", "ranks", "compiled"),
    [
        ({"steps": 2}, 2, True),
        ({"size": DEEP, "stages": 2, "recompute": "full", **SIX}, 2, True),
        ({"size": DEEP, "tensor": 2, "recompute": "none", "reshard": False}, 8, False),
        ({"tensor": 2, "float8": "yes", "recompute": "full"}, 4, False),
        ({"recompute": "none", "compiles": True, "compiles_loss": True}, 4, True),
        ({"size": DEEP, "reshard": True}, 4, False),
        ({"size": EXPERTS, "expert": 2, "recompute": "none", "reshard": False}, 4, True),
        ({"size": EXPERTS, "expert": 4, "dispatch": "hosts", "host": 2}, 8, True),
        (ADDED | SIX | {"size": DEEP, "float8": "gathered", "tensor": 2, "stages": 2}, 4, True),
        (ADDED | {"size": EXPERTS, "expert": 2, "float8": "gathered"}, 4, True),
    ],
)
def test_a_pretraining_with_repeated_micro_batches_is_noted_like_the_whole(
    options, ranks, compiled
):
    usual = {"size": SMALL, "pipeline": 2, "batch": 5, "microbatches": 5, "steps": 1, "length": 32}
    program = functools.partial(train, **usual | options)
    repeated, whole = both(program, ranks, (0, ranks - 1), compiled)
    assert repeated == whole


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("schedule", "number"),
    [("Schedule1F1B", 1), ("ScheduleGPipe", 1), ("ScheduleInterleaved1F1B", 2)],
)
def test_three_micro_batches_of_a_step_run_and_the_others_are_repeated(schedule, number, compiled):
    """The first, the middle and the last stage are noted as if all had run."""
    program = functools.partial(stages, schedule=schedule, number=number)
    repeated, whole = both(program, 3, (0, 1, 2), compiled)
    counts, noted = passes(repeated)
    counts_of_whole, noted_of_whole = passes(whole)
    assert noted == noted_of_whole
    assert counts == [2 * NOTED] * 3
    assert counts_of_whole == [2 * MICROBATCHES] * 3


def test_of_DDP_the_last_micro_batch_also_runs():
    """It adds up the gradients of all ranks."""
    repeated, whole = both(functools.partial(stages, wrap="ddp", copies=2), 6, (0, 2, 4))
    counts, noted = passes(repeated)
    _, noted_of_whole = passes(whole)
    assert noted == noted_of_whole
    assert counts == [2 * min(NOTED + 1, MICROBATCHES)] * 3


@pytest.mark.parametrize("extra", ["counts", "prints", "keeps"])
def test_a_forward_pass_that_changes_something_else_is_never_repeated(extra):
    """The fourth one of "counts" does more than the others."""
    repeated, whole = both(functools.partial(stages, extra=extra), 3, (0, 1, 2))
    assert repeated == whole
    counts, _ = passes(repeated)
    assert counts == [2 * MICROBATCHES] * 3


@pytest.mark.parametrize(
    ("schedule", "number"), [("ScheduleInterleavedZeroBubble", 2), ("ScheduleLoopedBFS", 2)]
)
def test_a_schedule_of_which_no_backward_pass_can_be_repeated_is_noted_whole(schedule, number):
    """One cuts backward passes in two, one begins them with the last micro-batch."""
    program = functools.partial(stages, schedule=schedule, number=number)
    repeated, whole = both(program, 3, (0, 2))
    counts, _ = passes(repeated)
    assert counts == [2 * MICROBATCHES] * 2
    assert [len(one.nodes) for one in repeated] == [len(one.nodes) for one in whole]
