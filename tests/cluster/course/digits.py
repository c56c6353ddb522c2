"""Training on scikit-learn's digits, on every rank of a cluster and under torchrun."""

import torch
import torch.distributed as dist
from torch import nn

from distlab_course import data, data_parallel

ENOUGH = 0.97  # of the digits that were not trained on


def train_digits(rank: int, world_size: int, epochs: int = 12) -> float:
    """Train on scikit-learn's digits, a partition a rank; the share of the test images that is recognised."""
    images = data.load()
    parts = data.DataPartitioner(images.train, [1 / world_size] * world_size)
    sampler = torch.Generator().manual_seed(rank)
    batch = data.batch_per_rank(128, world_size)
    loader = torch.utils.data.DataLoader(parts.use(rank), batch, shuffle=True, generator=sampler, drop_last=True)
    torch.manual_seed(1234)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, images.classes),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = data_parallel.OverlappedAverage(model)
    for _ in range(epochs):
        for pixels, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels), labels).backward()
            average.wait()
            optimizer.step()
    pixels, labels = images.test.batch(slice(rank, None, world_size))
    with torch.no_grad():
        right = (model(pixels).argmax(1) == labels).sum()
    dist.all_reduce(right)
    return right.item() / len(images.test)
