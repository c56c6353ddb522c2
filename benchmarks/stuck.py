"""What noting every call costs, what checked mode costs, and how long a stuck cell takes to be usable again."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.programs import first_sum

LOOPS = 200


def measure(n: int, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Tables of contestants, the peer second: a warm run with and without notes, then calls on the ranks themselves."""
    import distlab

    with distlab.Cluster(n) as cluster:
        noted: dict[str, list[float]] = {"cluster.run, every call noted": [], "without notes": []}
        for turn in range(repeat + 5):
            pairs = list(zip(noted, (True, False), strict=True))
            for name, layer in pairs[:: 1 if turn % 2 else -1]:  # the second may find the ranks warmer
                cluster.run(set_layer, layer)
                began = time.perf_counter()
                cluster.run(first_sum)
                if turn >= 5:
                    noted[name].append(time.perf_counter() - began)
        tables = {"one all_reduce of one float, noted or not": noted}
        for title, call in (("all_reduce of one float", sum_once), ("message of one float and its answer", ping_pong)):
            rows: dict[str, list[float]] = {"checked": [], "as usual": [], "without notes": []}
            for _ in range(repeat // 10 or 1):
                rows["checked"].append(cluster.run(timed, call, check=True)[0])
                rows["as usual"].append(cluster.run(timed, call)[0])
                cluster.run(set_layer, False)
                rows["without notes"].append(cluster.run(timed, call)[0])
                cluster.run(set_layer, True)
            tables[f"on the ranks, {title}"] = rows
    return tables


def set_layer(rank: int, world_size: int, on: bool) -> None:
    """Put the layer that notes calls under torch.distributed, or take it away."""
    import ctypes

    import torch
    import torch.distributed as dist

    from distlab.rank import hooks, log

    as_method = ctypes.pythonapi.PyInstanceMethod_New  # a built-in function does not bind by itself
    as_method.restype, as_method.argtypes = ctypes.py_object, [ctypes.py_object]
    if on:
        hooks.install()
        return
    methods = [(dist.ProcessGroup, name) for name in (*log.POINT_TO_POINT, *log.COLLECTIVES)]
    for owner, name in (*methods, (dist.Work, "wait"), (dist.Work, "get_future"), (torch.Future, "wait")):
        if hasattr(getattr(owner, name, None), "__wrapped__"):
            setattr(owner, name, as_method(inspect.unwrap(getattr(owner, name))))


def sum_once(rank: int, tensor: Any) -> None:
    import torch.distributed as dist

    dist.all_reduce(tensor)


def ping_pong(rank: int, tensor: Any) -> None:
    import torch.distributed as dist

    if rank == 0:
        dist.send(tensor, dst=1)
        dist.recv(tensor, src=1)
    elif rank == 1:
        dist.recv(tensor, src=0)
        dist.send(tensor, dst=0)


def timed(rank: int, world_size: int, call: Callable[[int, Any], None]) -> float:
    """Seconds of one call, the mean of many, on this rank."""
    import torch

    tensor = torch.zeros(1)
    for _ in range(10):
        call(rank, tensor)
    began = time.perf_counter()
    for _ in range(LOOPS):
        call(rank, tensor)
    return (time.perf_counter() - began) / LOOPS


def stuck_cells(n: int, repeat: int) -> dict[str, list[float]]:
    """Seconds from the block, or from the interrupt, until the error is there and the next cell can run."""
    import distlab

    rows: dict[str, list[float]] = {"a deadlock, from the block": [], "Ctrl-C in a blocked cell": []}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with distlab.Cluster(n) as cluster:
        for _ in range(repeat):
            began = time.perf_counter()
            with contextlib.suppress(distlab.DeadlockError):
                cluster.run(everybody_receives)
            rows["a deadlock, from the block"].append(time.perf_counter() - began)
            pressed: list[float] = []

            def press(pressed: list[float] = pressed) -> None:
                pressed.append(time.perf_counter())
                os.kill(os.getpid(), signal.SIGINT)

            threading.Timer(0.3, press).start()
            with contextlib.suppress(KeyboardInterrupt):
                cluster.run(everybody_receives)
            rows["Ctrl-C in a blocked cell"].append(time.perf_counter() - pressed[0])
    return rows


def everybody_receives(rank: int, world_size: int) -> None:
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(1), src=(rank + 1) % world_size)
