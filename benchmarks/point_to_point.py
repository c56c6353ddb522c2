"""One message from rank 0 to rank 1 over gloo, 1 KiB to 64 MiB, and how well alpha + beta m describes it.

Source of the model: Hockney, The communication challenge for MPP (1994).
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from distlab.measure import fit_alpha_beta, format_bytes, format_seconds, measure
from distlab.measure.timing import Fit, Timing

SIZES = [4**k for k in range(5, 14)]  # bytes


def messages_on_rank(rank: int, world_size: int, repeat: int) -> list[Timing]:
    """Half the time of a message and its answer, by size."""

    def there_and_back() -> None:
        if rank == 0:
            dist.send(tensor, dst=1)
            dist.recv(tensor, src=1)
        else:
            dist.recv(tensor, src=0)
            dist.send(tensor, dst=0)

    timings = []
    for num_bytes in SIZES:
        tensor = torch.zeros(num_bytes // 4)
        both = measure(there_and_back, num_bytes=num_bytes, repeat=repeat)
        timings.append(Timing(num_bytes, tuple(seconds / 2 for seconds in both.repetitions)))
    return timings


def report(repeat: int) -> str:
    """A table of the measured and the fitted seconds, and the fit's median error in a sentence."""
    import distlab

    with distlab.Cluster(2, timeout=120) as cluster:
        timings = cluster.run(messages_on_rank, repeat)[0]
    seconds = [timing.seconds for timing in timings]
    fit = fit_alpha_beta(SIZES, seconds)
    lines = ["| one message, 2 ranks, gloo | measured | alpha + beta m | off by |", "|---|---:|---:|---:|"]
    for num_bytes, measured in zip(SIZES, seconds, strict=True):
        lines.append(row(num_bytes, measured, fit))
    return "\n".join(lines) + f"\n\nFitted: {fit}; the median of what it is off by is {fit.error:.0%}."


def row(num_bytes: int, measured: float, fit: Fit) -> str:
    """A line of the table."""
    predicted = fit.seconds(num_bytes)
    cells = (format_bytes(num_bytes), format_seconds(measured).strip(), format_seconds(predicted).strip())
    return f"| {' | '.join(cells)} | {predicted / measured - 1:+.0%} |"
