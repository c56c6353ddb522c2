"""A pipeline of two stages, in a group of its own with a time limit of its own."""

import datetime

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=3))
rank = dist.get_rank()
group = dist.new_group([0, 1])
torch.manual_seed(0)
layers = [torch.nn.Linear(4, 4) for _ in range(2)]
rows = torch.rand(8, 4)
targets = torch.rand(8, 4)
stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"), group=group)
loss = torch.nn.MSELoss()
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss)
losses = []
if rank == 0:
    schedule.step(rows)
else:
    schedule.step(target=targets, losses=losses)
    alone = loss(layers[1](layers[0](rows)), targets)
    torch.testing.assert_close(sum(losses) / 4, alone)
    print(f"loss {alone.item():.5f}, as in one process")
dist.destroy_process_group()
