"""Data parallelism with DDP and a sampler; goes on from its snapshot if there is one."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SNAPSHOT = "snapshot.pt"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    epochs = parser.parse_args().epochs
    dist.init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)  # DDP broadcasts the weights of rank 0
    model = torch.nn.Linear(4, 1)
    first = 0
    if os.path.exists(SNAPSHOT):
        snapshot = torch.load(SNAPSHOT)
        model.load_state_dict(snapshot["model"])
        first = snapshot["epochs"]
        print(f"rank {rank} goes on at epoch {first}")
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05)
    rows = torch.arange(96.0).reshape(24, 4) / 96
    data = TensorDataset(rows, rows.sum(dim=1, keepdim=True))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    for epoch in range(first, epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(replica(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f"rank {rank} epoch {epoch} loss {loss.item():.6f}")
        if rank == 0:
            torch.save({"model": model.state_dict(), "epochs": epoch + 1}, SNAPSHOT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
