"""Pipelines of several stages and dimensions: their bubble is the one of the theory."""

import functools

import pytest
import torch
from torch import nn

import distlab
from tests.cluster.predict.test_predict import FREE, NETWORK, calls

NO_NETWORK, DEVICE = distlab.Network(0, "1000 PB/s"), distlab.Device("1 TFLOP/s")
WIDTH = 256  # so large that computing is limited by operations


def pipeline(
    rank,
    world_size,
    kind,
    stages=1,
    microbatches=8,
    copies=1,
    parts=1,
    wrap=None,
    width=WIDTH,
    shapes=True,
):
    from torch.distributed import pipelining
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (4, copies, parts), mesh_dim_names=("stages", "copies", "parts"))
    place = mesh.get_local_rank("stages")
    shape = torch.empty(64, width, device="meta", requires_grad=True)
    known = {"input_args": (shape,), "output_args": (shape,)} if shapes else {}
    made = []
    for number in range(place, 4 * stages, 4):
        model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(2)])
        if parts > 1:
            parallelize_module(
                model, mesh["parts"], {"0": ColwiseParallel(), "1": RowwiseParallel()}
            )
        if wrap == "fsdp":
            fully_shard(model, mesh=mesh["copies"])
        if wrap == "ddp":
            model = nn.parallel.DistributedDataParallel(
                model, process_group=mesh["copies"].get_group()
            )
        group = mesh["stages"].get_group()
        made.append(
            pipelining.PipelineStage(
                model, number, 4 * stages, torch.device("cpu"), group=group, **known
            )
        )
    schedule = getattr(pipelining, kind)(
        made if stages > 1 else made[0], microbatches, loss_fn=torch.dist
    )
    optimizer = torch.optim.SGD(
        [parameter for stage in made for parameter in stage.submod.parameters()]
    )
    whole = torch.ones(64 * microbatches, width, requires_grad=True)
    # the first stage has the inputs, the last one the targets
    inputs = [whole] if place == 0 else []
    targets = {"target": whole} if place == 3 else {}
    for _ in range(2):
        schedule.step(*inputs, **targets)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("kind", "stages", "microbatches", "bubble"),
    [
        ("Schedule1F1B", 1, 4, 3 / 4),
        ("ScheduleGPipe", 1, 8, 3 / 8),
        ("ScheduleInterleaved1F1B", 2, 8, 3 / 16),
        ("ScheduleInterleavedZeroBubble", 2, 8, 1 / 16),
    ],
)
def test_the_bubble_is_that_of_the_theory(kind, stages, microbatches, bubble):
    """With p stages, v on a rank, m micro-batches: (p - 1) / (v m) of the computing time.

    A zero-bubble schedule puts the weights' gradients into it: of three equal parts of the work,
    one stays idle.
    """
    program = functools.partial(pipeline, kind=kind, stages=stages, microbatches=microbatches)
    prediction = distlab.predict(program, 4, NO_NETWORK, DEVICE)
    assert prediction.idle / prediction.computing == pytest.approx(bubble, rel=1e-2)
    assert {recording.rank for recording in prediction.recordings} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("kind", "stages", "messages"), [("ScheduleInterleaved1F1B", 2, 0), ("Schedule1F1B", 1, 2)]
)
def test_messages_between_interleaved_stages_travel_beside_computing(kind, stages, messages):
    """In the steady state, to which each micro-batch adds as much.

    A rank with one stage waits for a message before each of its two passes: torch's schedule calls
    for it then, and waits for what it sends.
    """
    seconds = 3e-6  # a fifth of a stage's forward pass
    network = distlab.Network(0, 64 * WIDTH * 4 / seconds)
    few, many = [
        distlab.predict(
            functools.partial(pipeline, kind=kind, stages=stages, microbatches=microbatches),
            4,
            network,
            DEVICE,
        )
        for microbatches in (8, 16)
    ]
    waited = (many.seconds - few.seconds) - (many.computing - few.computing)
    assert waited / 8 == pytest.approx(messages * seconds, abs=0.05 * seconds)


def test_the_stages_of_a_pipeline_can_be_named():
    """Instead of being found by their messages."""
    program = functools.partial(pipeline, kind="ScheduleGPipe", stages=1, microbatches=4, width=8)
    found = distlab.predict(program, 4, NO_NETWORK, DEVICE)
    named = distlab.predict(program, 4, NO_NETWORK, DEVICE, roles=range(4))
    assert named.seconds == found.seconds


def test_copies_of_a_pipeline_add_up_their_gradients_once_a_step():
    program = functools.partial(pipeline, kind="Schedule1F1B", copies=2, wrap="ddp", width=64)
    prediction = distlab.predict(program, 8, NETWORK, FREE)
    assert [recording.rank for recording in prediction.recordings] == [0, 2, 4, 6]
    made = calls(prediction)
    assert made[-1] == ("all_reduce", 2, 2 * 64 * 64 * 4)
    assert [name for name, _, _ in made[:-1]].count("send") == 8
    assert {size for _, _, size in made[:-1]} == {64 * 64 * 4}


@pytest.mark.parametrize(("kind", "stages"), [("Schedule1F1B", 1), ("ScheduleInterleaved1F1B", 2)])
def test_a_pipeline_of_three_dimensions(kind, stages):
    """Four stages of two shards and two parts: all ranks but four do the same as those."""
    program = functools.partial(
        pipeline, kind=kind, stages=stages, copies=2, parts=2, wrap="fsdp", width=64
    )
    prediction = distlab.predict(program, 16, NETWORK, FREE)
    assert {recording.rank for recording in prediction.recordings} == {0, 4, 8, 12}
    made = calls(prediction)
    # of a stage: a rank has one of two shards of one of two parts
    share = 2 * 64 * 64 * 4 // 2 // 2
    # a step begins with what comes before its first module
    assert made[0] == ("all_gather", 2, share)
    assert (
        made.count(("all_gather", 2, share)) == made.count(("reduce_scatter", 2, share)) == stages
    )
    # of both parts, forward and backward
    assert made.count(("all_reduce", 2, 64 * 64 * 4)) == 2 * 8 * stages
    # no gradient of the whole input
    assert [name for name, _, _ in made].count("send") == 8 * (2 * stages - 1)


@pytest.mark.parametrize(
    ("kind", "stages"),
    [("ScheduleGPipe", 1), ("Schedule1F1B", 1), ("ScheduleInterleaved1F1B", 2)],
)
def test_stages_ask_each_other_for_their_shapes(kind, stages):
    """It takes none of the step's time."""
    program = functools.partial(pipeline, kind=kind, stages=stages, microbatches=4, width=8)
    given = distlab.predict(program, 4, NETWORK, DEVICE)
    asked = distlab.predict(functools.partial(program, shapes=False), 4, NETWORK, DEVICE)
    assert asked.seconds == pytest.approx(given.seconds)
    assert calls(asked) == calls(given)


def once(rank, world_size):
    """A single step without an optimizer, as in torch's tutorial."""
    from torch.distributed import pipelining

    model = nn.Linear(WIDTH, WIDTH)
    stage = pipelining.PipelineStage(model, rank, world_size, torch.device("cuda", rank))
    schedule = pipelining.ScheduleGPipe(stage, 4, loss_fn=torch.dist)
    whole = torch.ones(256, WIDTH, requires_grad=True)
    inputs = [whole] if rank == 0 else []
    targets = {"target": whole} if rank == world_size - 1 else {}
    schedule.step(*inputs, **targets)


def test_asking_is_no_part_of_a_single_step():
    """Four micro-batches of three products, on each of two stages: five, with the bubble."""
    product = 2 * 64 * WIDTH * WIDTH
    prediction = distlab.predict(once, 2, NO_NETWORK, DEVICE)
    assert prediction.seconds == pytest.approx(5 * 3 * product / 1e12, rel=0.1)
