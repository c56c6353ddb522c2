"""The course's pretraining step on a mesh of real ranks has the gradients of one process, clipped.

It needs ranks that are not rebuilt between tests: of equal meshes, DTensor caches the groups of the
first.
"""

import functools
import zlib

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from distlab_course.llama import Llama, Size
from distlab_course.pretraining import batch_of, loss_of, train

CLUSTER = {"n": 4, "timeout": 60, "preload": ["torch.distributed.fsdp"]}
SIZE = Size(64, 4, 4, 128, 4, 256)
LENGTH = 32


def fill(model):
    """Give each parameter numbers that depend on its name alone."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            seed = zlib.crc32(name.encode())
            numbers = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            numbers = 1 + numbers / 5 if "norm" in name else numbers / 5
            if isinstance(parameter, DTensor):
                placed = parameter.device_mesh, parameter.placements
                numbers = distribute_tensor(numbers, *placed, src_data_rank=None)
            parameter.copy_(numbers)


STEP = functools.partial(train, size=SIZE, length=LENGTH, batch=4, dtype=torch.float32, steps=1)


def gradients_of_train(rank, world_size, **options):
    """The clipped gradients of this rank's parts of the model, by name."""
    models = []

    def filled(model):
        fill(model)
        models.append(model)

    STEP(rank, world_size, fill=filled, **options)
    found = {}
    for model in models:
        for name, parameter in model.named_parameters():
            found[name] = parameter.grad.full_tensor()
    return found


def gradients_of_one_process(parts):
    """The norm, and the clipped gradients, of the same step on all parts of the data."""
    model = Llama(SIZE)
    fill(model)
    batches = [batch_of(SIZE, part, 4, LENGTH) for part in range(parts)]
    inputs, targets = map(torch.cat, zip(*batches, strict=True))
    loss_of(model(inputs), targets).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return norm, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "options",
    [
        {"tensor": 2, "recompute": "full"},
        {"pipeline": 2, "tensor": 2},
        {"pipeline": 2, "stages": 2},
    ],
    ids=str,
)
def test_a_step_on_a_mesh_has_the_clipped_gradients_of_one_process(cluster, options):
    data = 4 // options.get("tensor", 1) // options.get("pipeline", 1)
    norm, expected = gradients_of_one_process(data)
    assert norm > 1.2  # else nothing is clipped
    names = set()
    for found in cluster.run(functools.partial(gradients_of_train, **options)):
        names |= set(found)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5)
    assert names == set(expected)
