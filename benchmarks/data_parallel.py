"""A training step of data parallelism, our ways beside DistributedDataParallel in turns; and digits from nothing on.

As a program, `python -m benchmarks.data_parallel RANKS` trains the digits and prints "ready" when all is over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from benchmarks import startup
from distlab_course import data, data_parallel
from distlab_course.algorithms import ALL_REDUCE

WIDTH, DEPTH, BATCH = 900, 12, 16  # 9.8 million parameters in 48 tensors; 16 rows a rank
DDP = "DistributedDataParallel"
HOOKED = "DistributedDataParallel, our ring as its hook"
ENOUGH = 0.97  # of the digits that were not trained on


def measure(n: int, repeat: int) -> dict[str, list[float]]:
    """Seconds of a step by way, `repeat` times in turns, each that of its slowest rank."""
    import distlab

    with distlab.Cluster(n) as cluster:
        return cluster.run(time_steps, repeat)[0]


def time_steps(rank: int, world_size: int, repeat: int) -> dict[str, list[float]]:
    """The same on a rank: after three rounds that do not count, each round begins with another way."""
    ways = all_ways()
    seconds = {name: torch.zeros(repeat, dtype=torch.float64) for name in ways}
    for turn in range(-3, repeat):
        for place in range(len(ways)):
            name = list(ways)[(place + turn) % len(ways)]
            dist.barrier()
            began = time.perf_counter()
            ways[name]()
            seconds[name][max(turn, 0)] = time.perf_counter() - began
    for values in seconds.values():
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return {name: values.tolist() for name, values in seconds.items()}


def all_ways() -> dict[str, Callable[[], None]]:
    """A step of each way on a model of its own; all have DDP's default buckets."""
    each, flat, hooked = make_model(), make_model(), make_model()
    overlapped = data_parallel.OverlappedAverage(hooked)
    ringed = nn.parallel.DistributedDataParallel(make_model())
    ringed.register_comm_hook(None, data_parallel.averaging_hook(ALL_REDUCE["ring"]))
    return {
        "no averaging": make_step(make_model(), lambda: None),
        "an all-reduce for each parameter": make_step(each, lambda: data_parallel.average_gradients(each)),
        "buckets after backward": make_step(flat, lambda: data_parallel.average_gradients_in_buckets(flat)),
        "buckets while backward runs": make_step(hooked, overlapped.wait),
        DDP: make_step(nn.parallel.DistributedDataParallel(make_model()), lambda: None),
        HOOKED: make_step(ringed, lambda: None),
    }


def make_model() -> nn.Module:
    """Layers of many sizes: each has a large matrix and three small vectors."""
    layers = [(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()) for _ in range(DEPTH)]
    return nn.Sequential(*(part for layer in layers for part in layer))


def make_step(model: nn.Module, average: Callable[[], None]) -> Callable[[], None]:
    """One step of training on random numbers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        average()
        optimizer.step()

    return step


def digits(n: int, repeat: int) -> list[float]:
    """Seconds from before a new Python process starts until n ranks have trained, tested and ended."""
    command = [sys.executable, "-m", "benchmarks.data_parallel", str(n)]
    return [startup.run(command)[0] for _ in range(repeat)]


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


def main(n: int) -> None:
    import distlab

    with distlab.Cluster(n) as cluster:
        (accuracy, *_) = cluster.run(train_digits)
    assert accuracy >= ENOUGH, accuracy
    print("ready", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
