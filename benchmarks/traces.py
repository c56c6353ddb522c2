"""What a trace costs while it is recorded: the ranks' own time and that of the whole call, traced and not, in turns."""

from __future__ import annotations

import contextlib
import io
import time
from typing import Any


def ring(rank: int, world_size: int, rounds: int = 100) -> float:
    """Messages around a ring with a little computation between them; seconds on this rank."""
    import torch
    import torch.distributed as dist

    given, got, matrix = torch.ones(1000), torch.zeros(1000), torch.ones(64, 64)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(rounds):
        work = dist.isend(given, (rank + 1) % world_size)
        dist.recv(got, (rank - 1) % world_size)
        work.wait()
        matrix = (matrix @ matrix).tanh()
    return time.perf_counter() - began


def measure(n: int, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Two tables: the program timed on the ranks, and the call that runs it timed in the notebook."""
    import distlab

    on_ranks: dict[str, list[float]] = {"traced": [], "not traced": []}
    whole: dict[str, list[float]] = {"with cluster.trace()": [], "cluster.run": []}
    with distlab.Cluster(n) as cluster:
        for turn in range(repeat + 2):
            for names, recorder in zip(zip(on_ranks, whole, strict=True), (cluster.trace, _nothing), strict=True):
                began = time.perf_counter()
                with recorder():
                    slowest = max(cluster.run(ring))
                seconds = time.perf_counter() - began
                if turn >= 2:
                    on_ranks[names[0]].append(slowest)
                    whole[names[1]].append(seconds)
    return {"100 messages around a ring, timed on the ranks": on_ranks, "the same, timed in the notebook": whole}


def _nothing() -> Any:
    return contextlib.nullcontext()


def picture(ranks: int = 8, rounds: int = 160) -> str:
    """How long it takes to draw a trace of more than 5,000 events, and how large the picture is, in a sentence."""
    import distlab

    with distlab.Cluster(ranks) as cluster, cluster.trace() as trace:
        cluster.run(ring, rounds)
    trace.plot((0, 1e-3))  # matplotlib is imported from here on
    began, image = time.perf_counter(), io.BytesIO()
    trace.plot().savefig(image)
    seconds = time.perf_counter() - began
    return (
        f"A trace of {len(trace.events)} events on {ranks} ranks is drawn in {seconds:.2f} s, "
        f"as a PNG of {len(image.getvalue()) / 1e3:.0f} kB."
    )
