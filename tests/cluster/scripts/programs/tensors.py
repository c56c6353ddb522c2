"""Tensor parallelism; the mesh makes the process group, and nobody destroys it."""

import os

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
alone = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
for network in (alone, model):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for step in range(4):
        torch.manual_seed(step)
        network(torch.rand(5, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
torch.testing.assert_close(model(torch.ones(1, 6)), alone(torch.ones(1, 6)))
print(f"rank {mesh.get_rank()} of {mesh.size()}: as in one process")
