"""The process group of a running cluster, rebuilt again and again by every init method; and the same by hand."""

from __future__ import annotations

import socket

from benchmarks.life import seconds
from benchmarks.programs import first_sum

BY_HAND = "by hand, a new tcp:// store each time"


def measure(n: int, cycles: int) -> dict[str, list[float]]:
    """Seconds of each `cluster.heal()` of n ranks by init method, and of the same by hand on the ranks.

    Every tenth group adds up, to prove that it works.
    """
    import distlab

    found: dict[str, list[float]] = {}
    for init_method in ("tcp", "env", "file"):
        with distlab.Cluster(n, init_method=init_method) as cluster:
            found[f"heal(), {init_method}://"] = times = []
            for cycle in range(cycles):
                times.append(seconds(cluster.heal))
                if cycle % 10 == 0:
                    cluster.run(first_sum)
    with distlab.Cluster(n) as cluster:
        ports = [free_port() for _ in range(cycles)]
        found[BY_HAND] = [max(by_rank) for by_rank in zip(*cluster.run(rebuild_by_hand, ports), strict=True)]
        cluster.heal()
    return found


def rebuild_by_hand(rank: int, world_size: int, ports: list[int]) -> list[float]:
    """Seconds of destroy_process_group and init_process_group with tcp://, as a script would do it."""
    import time
    from datetime import timedelta

    import torch.distributed as dist

    limit, times = timedelta(seconds=30), []
    for port in ports:
        dist.barrier()
        began = time.perf_counter()
        dist.destroy_process_group()
        url = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=url, rank=rank, world_size=world_size, timeout=limit)
        times.append(time.perf_counter() - began)
    return times


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
