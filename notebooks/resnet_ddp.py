"""A residual network trained with DistributedDataParallel: a script that torchrun starts once for
each rank.

    torchrun --standalone --nproc-per-node=2 resnet_ddp.py --epochs 2 --checkpoint run.pt
    torchrun --standalone --nproc-per-node=4 resnet_ddp.py --epochs 4 --checkpoint run.pt --resume

`--epochs` counts from the first epoch of all, so the second line trains two more. With a GPU for
each rank of a node it uses NCCL, otherwise gloo and CPUs. It is plain PyTorch; only the data come
from distlab_course.
"""

import argparse
import os
from pathlib import Path

import torch
# which DDP would import after the group is made: with torch 2.13 a script may then abort at exit
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from distlab_course import data


def read_options():
    parser = argparse.ArgumentParser(description="Train a residual network with DistributedDataParallel.")
    parser.add_argument("--epochs", type=int, default=2, help="when to stop, counted from the first epoch of all")
    parser.add_argument("--batch-size", type=int, default=128, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument("--data", choices=("digits", "cifar10"), default="digits")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data, for each rank")
    parser.add_argument("--sync-batchnorm", action="store_true", help="batch statistics over all ranks; needs GPUs")
    parser.add_argument("--checkpoint", type=Path, metavar="PATH", help="file to write after each epoch")
    parser.add_argument("--checkpoint-per-node", action="store_true", help="write it on each node, to its own disk")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint, if there is one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint PATH")
    if "LOCAL_RANK" not in os.environ:
        parser.error("start it with torchrun, for example: torchrun --standalone --nproc-per-node=2 resnet_ddp.py")
    return options


class Block(nn.Module):
    """Two convolutions and a skip connection around them."""

    def __init__(self, inside, outside):
        super().__init__()
        self.stride, self.more = outside // inside, outside - inside
        self.first = nn.Conv2d(inside, outside, 3, self.stride, padding=1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside) for _ in range(2))

    def forward(self, x):
        y = self.norms[0](self.first(x)).relu()
        skip = x[:, :, :: self.stride, :: self.stride]
        # zeros for the channels that x does not have
        skip = nn.functional.pad(skip, (0, 0, 0, 0, 0, self.more))
        return (self.norms[1](self.second(y)) + skip).relu()


def resnet(blocks, channels, classes):
    """A residual network for small images, of 6 * blocks + 2 layers.

    Source: K. He et al., Deep Residual Learning for Image Recognition (2015), section 4.2.
    """
    widths = [16] * blocks + [32] * blocks + [64] * blocks
    stages = [Block(inside, outside) for inside, outside in zip([16, *widths[:-1]], widths, strict=True)]
    start = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*start, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def train_epoch(ddp, optimizer, loader, device, augment):
    """One pass over this rank's part of the data; the mean loss of all ranks."""
    ddp.train()
    losses = []
    for images, labels in loader:
        images = data.augment(images) if augment else images
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses).mean() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def evaluate(model, test, device):
    """The share of the test images that is recognised; each rank looks at its own part, every image
    counts once.
    """
    for buffer in model.buffers():
        # each rank has running means of its own; those of rank 0 are saved
        dist.broadcast(buffer, src=0)
    model.eval()
    counts = torch.zeros(2, device=device)
    part = range(dist.get_rank(), len(test), dist.get_world_size())
    with torch.no_grad():
        for start in range(0, len(part), 500):
            images, labels = test.batch(list(part[start : start + 500]))
            counts[0] += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
            counts[1] += len(labels)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def save(path, model, optimizer, epoch):
    """Write beside the old checkpoint, then replace it: whatever happens, there is a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, partial)
    os.replace(partial, path)


def resume(path, model, optimizer, device):
    """Load the checkpoint on every rank, to its own device; the epoch to begin with."""
    found = torch.load(path, map_location=device) if path.exists() else None
    epochs = [None] * dist.get_world_size()
    dist.all_gather_object(epochs, found and found["epoch"])
    if len(set(epochs)) > 1:
        raise SystemExit(f"The ranks found checkpoints of different epochs: {epochs}. Copy the oldest to every node.")
    if found is None:
        return 0
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return found["epoch"] + 1


def main():
    options = read_options()
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    elif options.sync_batchnorm:
        raise SystemExit("--sync-batchnorm needs a GPU for each rank: nn.SyncBatchNorm does not run on CPUs.")
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    # where files are missing, one rank of each node downloads them
    samples = data.load(options.data)
    sampler = DistributedSampler(samples.train, seed=options.seed)
    batch, on_gpu = options.batch_size // world_size, device.type == "cuda"
    loading = {"num_workers": options.workers, "pin_memory": on_gpu}
    loader = DataLoader(samples.train, batch, sampler=sampler, drop_last=True, **loading)
    torch.manual_seed(options.seed)
    model = resnet(3 if options.data == "cifar10" else 1, samples.shape[0], samples.classes)
    if options.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-5)
    first = resume(options.checkpoint, model, optimizer, device) if options.resume else 0
    if rank == 0 and first:
        print(f"resumed: epoch {first} is next", flush=True)
    ddp = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)

    writes = rank == 0 or (options.checkpoint_per_node and local_rank == 0)
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        # every rank augments in its own way
        torch.manual_seed(options.seed + epoch * world_size + rank)
        loss = train_epoch(ddp, optimizer, loader, device, augment=options.data == "cifar10")
        accuracy = evaluate(model, samples.test, device)
        if options.checkpoint and writes:
            save(options.checkpoint, model, optimizer, epoch)
        dist.barrier()  # no rank continues, or ends, before the checkpoint is there
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {100 * accuracy:.1f} %", flush=True)
    # before the group: with torch 2.13 a gloo group that only DDP still holds may hang while it is
    # freed
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
