"""Gradients of several micro-batches without communication, and an evaluation on one rank."""

import contextlib
import logging
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO if rank == 0 else 40)
steps, micro_batches = map(int, sys.argv[1:])
dist.init_process_group("gloo", init_method="env://")
generator = torch.Generator().manual_seed(7)
torch.manual_seed(0)
alone = torch.nn.Linear(6, 1)
model = DistributedDataParallel(torch.nn.Linear(6, 1))
model.module.load_state_dict(alone.state_dict())
optimizers = [torch.optim.AdamW(one.parameters(), lr=0.01) for one in (alone, model)]
for step in range(steps):
    rows = torch.randn(micro_batches, world_size, 5, 6, generator=generator)
    for number in range(micro_batches):
        is_last = number == micro_batches - 1
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = model(rows[number, rank]).square().mean() / micro_batches
            loss.backward()
    alone(rows).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        with torch.no_grad():
            logging.info("step %d: %.4f", step, alone(rows).square().mean())
    dist.barrier()
torch.testing.assert_close(model.module.weight, alone.weight)
print("as in one process")
dist.destroy_process_group()
