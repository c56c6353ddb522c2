"""Programs that are predicted as torch.compile would make them."""

import functools

import pytest
import torch

import distlab
from distlab_course.llama import Size
from distlab_course.pretraining import train
from distlab_predict.nodes import BYTES, Kernel
from tests.cluster.predict.test_layers_and_devices import convolutions
from tests.cluster.predict.test_predict import FREE, NETWORK, calls

SMALL = Size(256, 2, 8, 512, kv_heads=4, vocabulary=512)
BATCH = {"size": SMALL, "batch": 2, "length": 512, "resumed": True, "steps": 1}


def moved(prediction):
    """Bytes of the kernels of the last step that only move bytes."""
    recording = prediction.recordings[0]
    nodes = recording.nodes[slice(*recording.steps[-1])]
    return sum(node.num_bytes for node in nodes if isinstance(node, Kernel) and node.kind == BYTES)


def flops(prediction):
    """Of all recorded ranks."""
    nodes = [node for one in prediction.recordings for node in one.nodes]
    return sum(node.flops for node in nodes if isinstance(node, Kernel))


@pytest.mark.parametrize(
    "options",
    [
        {"recompute": "op"},
        {"recompute": "full", "tensor": 2},
        {"recompute": "none", "tensor": 2, "pipeline": 2},
    ],
    ids=["sharded", "tensors", "pipeline"],
)
def test_a_compiled_program_does_the_same_with_fewer_bytes(options):
    """The same products and the same calls, in less time and memory."""
    program = functools.partial(train, **BATCH, **options)
    device = distlab.Device("100 TFLOP/s", memory_bandwidth="1 TB/s")
    network = distlab.Network("1 ns", "1 TB/s")
    eager = distlab.predict(program, 8, network, device)
    compiled = distlab.predict(program, 8, network, device, compiled=True)
    assert calls(compiled) == calls(eager)
    assert flops(compiled) == flops(eager)
    assert moved(compiled) < moved(eager)
    assert compiled.seconds < eager.seconds
    assert compiled.memory["activations"] < eager.memory["activations"]


def test_only_what_a_program_compiles_moves_fewer_bytes():
    """All of it, its blocks and its loss, its blocks, or nothing."""
    whole = functools.partial(train, **BATCH, recompute="op")
    blocks = functools.partial(whole, compiles=True)
    with_loss = functools.partial(blocks, compiles_loss=True)
    sizes = []
    for program, compiled in ((whole, True), (with_loss, True), (blocks, True), (blocks, False)):
        sizes.append(moved(distlab.predict(program, 8, NETWORK, FREE, compiled=compiled)))
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3]
    assert sizes[3] == moved(distlab.predict(whole, 8, NETWORK, FREE))


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_compiled_loss_has_fewer_scores_in_float32(tensor):
    """It is 8 bytes less for each score of a rank.

    A loss as it is written has three in float32, and reads none in bfloat16 any more; compiled, it
    has two in bfloat16. With tensor parallelism each has one in float32 more, which it writes into.
    """
    size = Size(64, 1, 2, 128, kv_heads=2, vocabulary=4096)
    usual = {**BATCH, "size": size, "length": 256}
    program = functools.partial(train, **usual, compiles=True, tensor=tensor)
    scores = 2 * 256 * 4096 // tensor
    activations = []
    for compiles_loss in (False, True):
        step = functools.partial(program, compiles_loss=compiles_loss)
        prediction = distlab.predict(step, 2, NETWORK, FREE, compiled=True)
        activations.append(prediction.memory["activations"])
    assert activations[0] - activations[1] == pytest.approx(8 * scores, rel=0.05)


def test_a_sweep_of_compiled_programs():
    choices = {"recompute": ["op", "full"]}
    program = functools.partial(train, **BATCH)
    table = distlab.predict.sweep(program, [8], NETWORK, FREE, compiled=True, **choices)
    eager = distlab.predict.sweep(program, [8], NETWORK, FREE, **choices)
    for one, other in zip(table, eager, strict=True):
        assert moved(one.prediction) < moved(other.prediction)


def test_what_a_program_gives_to_compile_is_data_parallel_as_before():
    eager = distlab.predict(convolutions, 8, NETWORK, FREE)
    compiled = distlab.predict(convolutions, 8, NETWORK, FREE, compiled=True)
    assert calls(compiled) == calls(eager)
    assert moved(compiled) < moved(eager)


def through_lists(rank, world_size):
    """A program that reads and writes a tensor in parts, and whose module raises nothing."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = torch.ones(4, 8)
    for _ in range(2):
        first, second = model(values).chunk(2, -1)
        kept = torch.empty(4, 8)
        kept[:, :4] = first.sigmoid()
        kept[:, 4:] = second.tanh()
        kept.add_(1).mul_(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_what_is_written_in_place_and_in_parts():
    eager = distlab.predict(through_lists, 1, NETWORK, FREE)
    compiled = distlab.predict(through_lists, 1, NETWORK, FREE, compiled=True)
    assert compiled.flops == eager.flops
    assert moved(compiled) < moved(eager)
