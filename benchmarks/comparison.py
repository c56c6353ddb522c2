"""What a comparison costs: a small model, and one of ten million parameters, on ranks that run.

Called by benchmarks/__main__.py; alone, `python -m benchmarks.comparison`.
"""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Found, in_turns, seconds_of

STEPS = 3
SMALL = (4, 8, 1)  # widths of the layers
LARGE = (1000, 2000, 2000, 1990, 10)  # ten million parameters
ROWS = 64


def train(rank: int, world_size: int, widths: tuple[int, ...]) -> None:
    """Train a model of linear layers for three steps, on this rank's part of 64 rows."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    layers: list[Any] = []
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), nn.Tanh()]
    model = nn.Sequential(*layers)
    net = DistributedDataParallel(model)
    rows = torch.randn(ROWS, widths[0])[rank::world_size]
    targets = torch.randn(ROWS, widths[-1])[rank::world_size]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(rows), targets).backward()
        optimizer.step()


def parameters(widths: tuple[int, ...]) -> int:
    """How many a model has."""
    return sum((width + 1) * following for width, following in itertools.pairwise(widths))


def measure(n: int, repeat: int) -> dict[str, Found]:
    """Tables of a program as it is, watched, and compared with one process."""
    import distlab

    tables = {}
    with distlab.Cluster(n) as cluster:
        for words, widths in (("a small model", SMALL), ("10 million parameters", LARGE)):
            contestants = {
                "compared, worlds 1 and n": partial(distlab.compare, train, (1, n), widths),
                "watched": partial(watch, cluster, n, widths),
                "as it is": partial(cluster.run, train, widths),
            }
            timed = {name: partial(seconds_of, call) for name, call in contestants.items()}
            tables[f"three steps on {n} ranks, {words}"] = in_turns(timed, repeat, warm_up=1)
    return tables


def watch(cluster: Any, n: int, widths: tuple[int, ...]) -> None:
    """Run the program once on all ranks, and look at it."""
    from distlab.comparison.compare import Program
    from distlab.comparison.records import WatchOptions

    Program(cluster, train, (widths,), {}, seed=0, timeout=None).run(n, WatchOptions())


# --- memory ---


def copies_of_gradients(n: int, repeat: int) -> tuple[float, float]:
    """What a watched run adds to a rank's highest memory, in copies of the large gradients.

    Returns:
        the median, and the most, of the rank that needs most.
    """
    import distlab

    size = 4 * parameters(LARGE)
    with distlab.Cluster(n) as cluster:
        ways = {
            True: partial(highest, cluster, partial(watch, cluster, n, LARGE)),
            False: partial(highest, cluster, partial(cluster.run, train, LARGE)),
        }
        found = in_turns(ways, repeat, warm_up=1)
    added = []
    for watched, plain in zip(found[True], found[False], strict=True):
        added.append((watched - plain) / size)
    return statistics.median(added), max(added)


def highest(cluster: Any, call: Any) -> float:
    """The highest memory of a rank during a call, in bytes; Linux starts anew where it is asked."""
    cluster.run(forget_highest)
    call()
    return max(cluster.run(highest_memory))


def forget_highest(rank: int, world_size: int) -> None:
    Path("/proc/self/clear_refs").write_text("5")


def highest_memory(rank: int, world_size: int) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    raise LookupError("this system does not count the highest memory of a process")


def report(n: int, repeat: int) -> str:
    """The tables, and a sentence about memory."""
    texts = [harness.table(title, found) for title, found in measure(n, repeat).items()]
    median, most = copies_of_gradients(n, repeat)
    texts.append(
        f"Of ten million parameters, a watched run adds {median:.1f} copies of the gradients "
        f"to the highest memory of a rank (at most {most:.1f})."
    )
    return "\n\n".join(texts)


if __name__ == "__main__":
    print(report(n=4, repeat=5))
