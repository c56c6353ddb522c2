"""A cluster in a kernel that is warm: started, restarted, replaced by one of another size, stopped; and many ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cells import in_turns
from benchmarks.programs import first_sum, memory, sum_in_group


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(n: int, repeat: int) -> dict[str, list[float]]:
    """Seconds of each step in the life of Cluster(n), `repeat` times."""
    import distlab

    names = (f"Cluster({n})", "a rank dies, and heal()", "restart()", f"Cluster({n + 1}) after it", "stop()")
    steps: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeat):
        kept: list[distlab.Cluster] = []
        calls = (
            lambda kept=kept: kept.append(distlab.Cluster(n)),
            lambda kept=kept: lose_and_heal(kept[0]),
            lambda kept=kept: kept[0].restart(),
            lambda kept=kept: kept.append(distlab.Cluster(n + 1)),
            lambda kept=kept: kept[-1].stop(),
        )
        for name, call in zip(steps, calls, strict=True):
            steps[name].append(seconds(call))
    return steps


def lose_and_heal(cluster: Any) -> None:
    """Kill a rank in a cell, and have a new one in its place."""
    import distlab

    with contextlib.suppress(distlab.RankDied):
        cluster.run(die_on_last)
    cluster.heal()


def die_on_last(rank: int, world_size: int) -> None:
    if rank == world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)


def sizes(counts: list[int], repeat: int) -> list[dict[str, float]]:
    """What more ranks cost, medians: seconds to the first all_reduce, MB a rank, and seconds of warm calls.

    Beside `cluster.run` of an all_reduce of one float stand the limits that it cannot beat: ipyparallel's own call of
    the same function, and the all_reduce alone, timed on the ranks.
    """
    import distlab

    rows = []
    for n in counts:
        started, megabytes, measured = [], [], {"run": [], "apply_sync": [], "gloo": []}
        for _ in range(repeat):
            began = time.perf_counter()
            with distlab.Cluster(n) as cluster:
                cluster.run(first_sum)
                started.append(time.perf_counter() - began)
                megabytes.append(max(cluster.run(memory)))
                view = cluster.client[:]
                turns = in_turns(
                    {
                        "run": lambda c=cluster: c.run(first_sum),
                        "apply_sync": lambda v=view: v.apply_sync(sum_in_group),
                    },
                    10,
                )
                measured["gloo"].append(cluster.run(all_reduce_seconds)[0])
                for name, values in turns.items():
                    measured[name].extend(values)
        medians = {name: statistics.median(values) for name, values in measured.items()}
        rows.append(
            {"ranks": n, "start": statistics.median(started), "megabytes": statistics.median(megabytes), **medians}
        )
    return rows


def all_reduce_seconds(rank: int, world_size: int) -> float:
    """One all_reduce of one float, timed on the ranks."""
    import torch
    import torch.distributed as dist

    from distlab.measure.timing import measure

    return measure(dist.all_reduce, torch.zeros(1), repeat=10).seconds
