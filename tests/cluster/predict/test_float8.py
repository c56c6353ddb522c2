"""Weights gathered in float8: on real ranks as in one process, and with half the bytes."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import parallel

import distlab
from distlab_course.dividing import split_block
from distlab_course.float8 import in_float8
from distlab_course.float8_weights import share_scales
from distlab_course.llama import Block
from distlab_course.sizes import Size

NETWORK = distlab.Network("5 us", "1 GB/s")
CLUSTER = {"n": 2, "timeout": 60, "preload": ["torch.distributed.fsdp"]}


def model_of():
    torch.manual_seed(0)
    layers = nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 32, bias=False)
    return nn.Sequential(*layers)


def losses_of(model, after_step, steps=3, dtype=torch.float32):
    """Losses of a few steps on the same inputs."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    inputs = torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        after_step(model)
        losses.append(loss.detach())
    return torch.stack(losses)


def sharded(rank, world_size, gathered=True, in_advance=True, dtype=torch.float32):
    mesh = init_device_mesh("cpu", (world_size,))
    model = in_float8(model_of(), gathered=gathered)
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    after_step = share_scales if gathered and in_advance else lambda _: None
    return losses_of(model, after_step, dtype=dtype)


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("in_advance", [False, True])
def test_ranks_have_the_losses_of_one_process(cluster, gathered, in_advance):
    """Scales are of whole weights, so float8 has the same numbers however a weight is cut."""
    expected = losses_of(in_float8(model_of()), lambda _: None)
    assert expected[2] < 0.9 * expected[0]
    program = functools.partial(sharded, gathered=gathered, in_advance=in_advance)
    for losses in cluster.run(program):
        assert torch.allclose(losses, expected, rtol=1e-5)


def divided(rank, world_size):
    """The result of two layers whose weights are cut between the ranks, and a gradient."""
    model = in_float8(model_of())
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, init_device_mesh("cpu", (world_size,)), plan)
    result = model(torch.ones(16, 64) / torch.arange(1, 65))
    result.square().sum().backward()
    return result.detach(), model[0].weight.grad.full_tensor()


def test_layers_of_tensor_parallelism_have_the_scales_of_whole_tensors(cluster):
    model = in_float8(model_of())
    expected = model(torch.ones(16, 64) / torch.arange(1, 65))
    expected.square().sum().backward()
    for result, gradient in cluster.run(divided):
        assert torch.allclose(result, expected, rtol=1e-5, atol=1e-6)
        assert torch.allclose(gradient, model[0].weight.grad, rtol=1e-4, atol=1e-6)


def divided_and_sharded(rank, world_size):
    """Losses on two ranks of tensor parallelism; two more have the rest of each gathered part."""
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("data", "tensor"))
    model = in_float8(model_of(), gathered=True)
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh["tensor"], plan)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    share_scales(model)
    return losses_of(model, share_scales)


def test_parts_of_tensor_parallelism_are_gathered_in_float8():
    expected = losses_of(in_float8(model_of()), lambda _: None)
    with distlab.Cluster(4, timeout=60) as cluster:
        for losses in cluster.run(divided_and_sharded):
            assert torch.allclose(losses, expected, rtol=1e-5)


def test_parts_that_are_gathered_in_float8_are_predicted():
    prediction = distlab.predict(divided_and_sharded, 4, NETWORK, distlab.Device.named("H100"))
    (recording,) = prediction.recordings
    nodes = recording.nodes[slice(*recording.steps[-1])]
    sizes = [node.sent[0] for node in nodes if node.name == "all_gather" and len(node.members) == 2]
    first, second = 64 * 128 // 4, 128 * 32 // 4  # of four ranks, a byte for each number
    assert sizes == [first, second, second, first]


def block_in_parts(rank, world_size, float8):
    """A block's passes; each rank has a part of the sequence, of 2 x 32 x 64 numbers."""
    block = Block(Size(64, 1, 4, 128, 4, 256)).bfloat16()
    if float8:
        in_float8(block)
    split_block(block, init_device_mesh("cpu", (world_size,)))
    part = torch.ones(2, 32 // world_size, 64, dtype=torch.bfloat16, requires_grad=True)
    block(part).sum().backward()


def test_tensor_parallelism_gathers_in_float8_what_each_rank_has_cast_once():
    gathers, scatters, casts = {}, {}, {}
    for float8 in (False, True):
        program = functools.partial(block_in_parts, float8=float8)
        (recording,) = distlab.predict(program, 2, NETWORK, distlab.Device.named("H100")).recordings
        nodes = recording.nodes
        gathers[float8] = [node.sent[0] for node in nodes if node.name == "all_gather"]
        scatters[float8] = [node.sent[0] for node in nodes if node.name == "reduce_scatter"]
        casts[float8] = [node for node in nodes if node.name == "abs"]
    part = 2 * 16 * 64
    # of both halves of the block, forward and backward
    assert gathers == {False: [2 * part] * 4, True: [part] * 4}
    assert scatters == {False: [2 * part] * 4, True: [2 * part] * 4}
    layers = 7
    forward = layers + 2 + 2  # weights, inputs of wo and w2, and what the block's halves are given
    backward = layers + 2 + (layers - 2) + 2  # and gradients of five results, and of the halves'
    assert (len(casts[False]), len(casts[True])) == (0, forward + backward)


def predicted(**options):
    """Names and bytes of the calls of the last step, and the kernels of products."""
    program = functools.partial(sharded, dtype=torch.bfloat16, **options)
    recording = distlab.predict(program, 4, NETWORK, distlab.Device.named("H100")).recordings[0]
    nodes = recording.nodes[slice(*recording.steps[-1])]
    calls = [(node.name, node.sent[0]) for node in nodes if hasattr(node, "members")]
    products = [node for node in nodes if node.name == "_scaled_mm"]
    return calls, products


def test_half_the_bytes_are_predicted():
    calls, products = predicted(gathered=False)
    assert {product.dtype for product in products} == {"float8_e4m3fn", "float8_e5m2"}
    assert len(products) == 2 + 2 * 2 - 1  # nobody asks for the gradient of the inputs
    gathers = [size for name, size in calls if name == "all_gather"]
    assert sorted(gathers) == [32 * 128 * 2 // 4] * 2 + [64 * 128 * 2 // 4] * 2
    eight, _ = predicted(gathered=True)
    assert [size for name, size in eight if name == "all_gather"] == [n // 2 for n in gathers]
    # the scales of both weights of the step before
    assert [call for call in eight if call[0] == "all_reduce"] == [("all_reduce", 2 * 4)]


def kept_whole(rank, world_size, gathered):
    """Gathered weights stay until the backward pass, and most memory is needed at its begin."""
    model = nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(4)])
    in_float8(model, gathered=gathered)
    mesh = init_device_mesh("cpu", (world_size,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(4096, 128)).square().sum().backward()
    optimizer.step()


def test_gathered_weights_are_unsharded_parameters_with_half_the_bytes():
    memory = {}
    for gathered in (False, True):
        program = functools.partial(kept_whole, gathered=gathered)
        prediction = distlab.predict(program, 4, NETWORK, distlab.Device("1 TFLOP/s"))
        memory[gathered] = prediction.memory
    numbers = 4 * 128 * 128
    assert memory[False]["unsharded parameters"] >= 2 * numbers
    assert memory[True]["unsharded parameters"] == numbers
    assert memory[True]["parameters"] == memory[False]["parameters"] == 4 * numbers // 4
    assert sum(memory[True].values()) < sum(memory[False].values())
