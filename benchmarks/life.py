"""A cluster in a kernel that is warm: started, restarted, replaced by one of another size, stopped; and many ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.programs import first_sum, memory


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(n: int, repeat: int) -> dict[str, list[float]]:
    """Seconds of each step in the life of Cluster(n), `repeat` times."""
    import distlab

    steps: dict[str, list[float]] = {
        f"Cluster({n})": [],
        "restart()": [],
        f"Cluster({n + 1}) after it": [],
        "stop()": [],
    }
    for _ in range(repeat):
        kept: list[distlab.Cluster] = []
        calls = (
            lambda kept=kept: kept.append(distlab.Cluster(n)),
            lambda kept=kept: kept[0].restart(),
            lambda kept=kept: kept.append(distlab.Cluster(n + 1)),
            lambda kept=kept: kept[-1].stop(),
        )
        for name, call in zip(steps, calls, strict=True):
            steps[name].append(seconds(call))
    return steps


def sizes(counts: list[int], repeat: int) -> list[dict[str, float]]:
    """For each number of ranks: seconds to the first all_reduce, MB a rank, seconds of a warm run, all medians."""
    import distlab

    rows = []
    for n in counts:
        started, runs, megabytes = [], [], []
        for _ in range(repeat):
            began = time.perf_counter()
            with distlab.Cluster(n) as cluster:
                cluster.run(first_sum)
                started.append(time.perf_counter() - began)
                megabytes.append(max(cluster.run(memory)))
                runs.extend(seconds(lambda c=cluster: c.run(first_sum)) for _ in range(10))
        rows.append(
            {
                "ranks": n,
                "start": statistics.median(started),
                "megabytes": statistics.median(megabytes),
                "run": statistics.median(runs),
            }
        )
    return rows
