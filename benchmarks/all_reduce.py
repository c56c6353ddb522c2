"""Every all-reduce of distlab_course.algorithms beside gloo's own, on real ranks.

Run it with `python -m benchmarks.all_reduce`.

The slowest rank's time counts. Beside the contestants stand two limits, without adding up and
without waiting: every rank copies its tensor once, or piece by piece into its part of the shared
memory and back.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Found, slowest_in_turns
from distlab.measure import format_bytes

if TYPE_CHECKING:
    import torch

RANKS = (2, 4)
SIZES = [256 << (2 * i) for i in range(10)]  # 256 B to 64 MiB
COPIES = ("plain copy", "copy in and out")
NO_MESSAGES = ("gloo", "shared memory", "best", *COPIES)


def seconds_on_rank(rank: int, world_size: int, num_bytes: int, repeat: int) -> Found:
    """Seconds of a call of each contestant on a float32 tensor of `num_bytes`, `repeat` times."""
    import torch

    # short calls ten in a row, as a training loop makes them: what the barrier stirred up has
    # settled then
    in_a_row = max(1, min(10, (1 << 20) // num_bytes))
    return slowest_in_turns(contestants(torch.zeros(num_bytes // 4)), repeat, times=in_a_row)


def contestants(tensor: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is compared, by name: functions without arguments."""
    import torch
    import torch.distributed as dist

    from distlab_course.algorithms import ALL_REDUCE
    from distlab_course.algorithms.shared_memory import segment_of

    segment = segment_of(dist.group.WORLD)
    cells = segment.cells(tensor.dtype)[segment.rank]
    copy = torch.empty_like(tensor)

    def copy_in_and_out() -> None:
        for piece in tensor.split(len(cells) * cells[0].numel()):
            parts = piece.tensor_split(len(cells))
            places = [cell[: part.numel()] for cell, part in zip(cells, parts, strict=True)]
            for place, part in zip(places, parts, strict=True):
                place.copy_(part)
            for place, part in zip(places, parts, strict=True):
                part.copy_(place)

    ours = {name: partial(fn, tensor) for name, fn in ALL_REDUCE.items()}
    copies = dict(zip(COPIES, (partial(copy.copy_, tensor), copy_in_and_out), strict=True))
    return {"gloo": partial(dist.all_reduce, tensor), **ours, **copies}


def measure(n: int, repeat: int) -> dict[int, dict[str, float]]:
    """Median seconds by size and contestant on `n` ranks."""
    import distlab

    medians = {}
    with distlab.Cluster(n, timeout=120) as cluster:
        for num_bytes in SIZES:
            seconds = cluster.run(seconds_on_rank, num_bytes, repeat)[0]
            medians[num_bytes] = {
                name: statistics.median(values) for name, values in seconds.items()
            }
    return medians


def table(n: int, medians: dict[int, dict[str, float]]) -> str:
    """A Markdown table: gloo's milliseconds, and every other contestant as times gloo's."""
    names = [name for name in medians[SIZES[0]] if name != "gloo"]
    lines = [
        f"| {n} ranks, float32 | gloo | {' | '.join(names)} |",
        "|---|" + "---:|" * (len(names) + 1),
    ]
    for num_bytes, seconds in medians.items():
        ratios = [f"{seconds[name] / seconds['gloo']:.2f}" for name in names]
        lines.append(
            f"| {format_bytes(num_bytes)} | {seconds['gloo'] * 1e3:.2f} ms | {' | '.join(ratios)} |"
        )
    return "\n".join(lines)


def summary(n: int, medians: dict[int, dict[str, float]]) -> str:
    """In one paragraph: where `best` and the quickest algorithm of messages stand.

    It also says how far the copies are.
    """

    def ratio(num_bytes: int, *names: str) -> float:
        return min(medians[num_bytes][name] for name in names) / medians[num_bytes]["gloo"]

    def span(values: list[float]) -> str:
        return f"{min(values):.2f} to {max(values):.2f}"

    messages = [name for name in medians[SIZES[0]] if name not in NO_MESSAGES]
    small = [size for size in SIZES if size <= 1 << 18]
    large = [size for size in SIZES if size >= 1 << 22]
    best = [ratio(size, "best") for size in SIZES]
    over_small = [ratio(size, "best") for size in small]
    won = sum(ratio(size, *messages) <= 1 for size in SIZES)
    distance = [medians[size]["shared memory"] / medians[size]["copy in and out"] for size in large]
    return (
        f"On {n} ranks `best` takes {span(best)} times as long as gloo "
        f"({span(over_small)} up to 256 KiB). "
        f"Messages alone are as quick as gloo at {won} of {len(SIZES)} sizes. "
        f"From 4 MiB, shared memory takes {span(distance)} times as long as copying in and out."
    )


def report(n: int, repeat: int) -> str:
    """Table and summary for `n` ranks."""
    medians = measure(n, repeat)
    return f"{table(n, medians)}\n\n{summary(n, medians)}"


if __name__ == "__main__":
    for n in RANKS:
        print(report(n, 9), end="\n\n", flush=True)
