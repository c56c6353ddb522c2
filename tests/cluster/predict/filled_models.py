"""The course's pretraining step with numbers that all ranks and one process give a model alike."""

import functools
import zlib
from unittest import mock

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from distlab_course import dividing, pretraining
from distlab_course.float8 import in_float8
from distlab_course.llama import Llama
from distlab_course.pretraining import batch_of, loss_of, not_in_float8, train

LENGTH = 32
BATCH = 4
STEP = functools.partial(train, length=LENGTH, batch=BATCH, dtype=torch.float32, steps=1)


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


@functools.cache
def mesh_of(device, shape, *, mesh_dim_names):
    """A mesh that the steps on a rank share.

    Each mesh has groups of its own, and gloo has threads for each, which look for messages a
    hundred times a second as long as the ranks are there.
    """
    return init_device_mesh(device, shape, mesh_dim_names=mesh_dim_names)


def models_of_train(rank, world_size, **options):
    """This rank's parts of the model after a step."""
    models = []

    def filled(model):
        fill(model)
        models.append(model)

    with (
        mock.patch.object(pretraining, "init_device_mesh", mesh_of),
        mock.patch.object(dividing, "init_device_mesh", mesh_of),
    ):
        STEP(rank, world_size, fill=filled, **options)
    return models


def gradients_of_train(rank, world_size, **options):
    """The clipped gradients of this rank's parts of the model, by name."""
    found = {}
    for model in models_of_train(rank, world_size, **options):
        for name, parameter in model.named_parameters():
            found[name] = parameter.grad.full_tensor()
    return found


def model_of_one_process(size, parts, float8=False, batch=BATCH):
    """The norm of the gradients, and the model with its clipped ones, of all parts of the data."""
    model = Llama(size)
    if float8:
        in_float8(model, but=not_in_float8(model))
    fill(model)
    for number in range(parts):
        inputs, targets = batch_of(size, number, batch, LENGTH)
        loss_of(model(inputs), targets, parts).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return norm, model
