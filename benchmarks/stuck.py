"""The cost of noting every call, of checked mode, and of a stuck cell.

For the latter it is the time until it is usable again.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import Found, in_turns, seconds_of
from benchmarks.programs import first_sum

LOOPS = 200


def measure(n: int, repeat: int) -> dict[str, Found]:
    """Tables of contestants: a warm run with and without notes, then calls on the ranks."""
    import distlab

    with distlab.Cluster(n) as cluster:

        def run(notes: bool) -> float:
            cluster.run(set_layer, notes)
            return seconds_of(partial(cluster.run, first_sum))

        def on_ranks(call: Callable[[int, Any], None], notes: bool, **options: bool) -> float:
            cluster.run(set_layer, notes)
            return cluster.run(timed, call, **options)[0]

        ways = {
            "cluster.run, every call noted": partial(run, True),
            "without notes": partial(run, False),
        }
        tables = {"one all_reduce of one float, noted or not": in_turns(ways, repeat, warm_up=5)}
        for title, call in (
            ("all_reduce of one float", sum_once),
            ("message of one float and its answer", ping_pong),
        ):
            ways = {
                "checked": partial(on_ranks, call, True, check=True),
                "as usual": partial(on_ranks, call, True),
                "without notes": partial(on_ranks, call, False),
            }
            tables[f"on the ranks, {title}"] = in_turns(ways, repeat // 10 or 1)
    return tables


def set_layer(rank: int, world_size: int, on: bool) -> None:
    """Put the layer that notes calls under torch.distributed, or take it away again."""
    import ctypes

    from distlab.rank import table

    as_method = ctypes.pythonapi.PyInstanceMethod_New  # a built-in function does not bind by itself
    as_method.restype = ctypes.py_object
    as_method.argtypes = [ctypes.py_object]
    if on:
        table.install_all()
        return
    for owner, name, _ in table.patches():
        if isinstance(owner, type) and hasattr(getattr(owner, name, None), "is_distlabs"):
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

    once = partial(call, rank, torch.zeros(1))
    seconds_of(once, 10)
    return seconds_of(once, LOOPS)


def stuck_cells(n: int, repeat: int) -> Found:
    """Seconds from the block, or from the interrupt, until the next cell can run.

    The error is there by then.
    """
    import distlab

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with distlab.Cluster(n) as cluster:
        ways = {"Ctrl-C in a blocked cell": interrupt, "a deadlock, from the block": deadlock}
        return in_turns({name: partial(way, cluster) for name, way in ways.items()}, repeat)


def deadlock(cluster: Any) -> float:
    """Seconds from the block of all ranks until the error."""
    import distlab

    began = time.perf_counter()
    with contextlib.suppress(distlab.DeadlockError):
        cluster.run(everybody_receives)
    return time.perf_counter() - began


def interrupt(cluster: Any) -> float:
    """Seconds from Ctrl-C, while all ranks are blocked, until the error."""
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.3, press).start()
    with contextlib.suppress(KeyboardInterrupt):
        cluster.run(everybody_receives)
    return time.perf_counter() - pressed[0]


def everybody_receives(rank: int, world_size: int) -> None:
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(1), src=(rank + 1) % world_size)
