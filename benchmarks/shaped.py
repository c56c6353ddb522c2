"""What the simulation predicts beside what real gloo takes on such a network.

The network's latency and rate are made by shaping.py.

`report` runs it; `python -m benchmarks.shaped RANK RANKS LATENCY RATE` is one rank. A rank measures
each function over the gloo group of the hosts, and then lets the same function run with virtual
clocks.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from benchmarks import shaping
from benchmarks.harness import slowest_in_turns
from distlab.errors import ClusterError

SIZES = (4, 1 << 16, 1 << 20, 1 << 22)
NETWORKS = ((2e-3, 12.5e6), (5e-3, 25e6), (20e-3, 25e6))  # seconds, bytes a second
REPEAT = 5
RANKS = (2, 4)
HEAD = 54  # bytes of IP and TCP that each packet carries besides the data
GOODPUT = (shaping.MTU - HEAD) / shaping.MTU


def functions() -> dict[str, Callable]:
    """What is compared: gloo's own all-reduce is a ring, as far as the model knows."""
    import torch.distributed as dist

    from distlab_course.algorithms import ALL_REDUCE

    def ping_pong(tensor, group):
        rank = dist.get_rank(group)
        for turn in range(2 if rank < 2 else 0):
            if rank == turn:
                dist.send(tensor, group_dst=1 - rank, group=group)
            else:
                dist.recv(tensor, group_src=1 - rank, group=group)

    names = ("ring", "recursive doubling", "naive")
    return {
        "ping-pong": ping_pong,
        "gloo": dist.all_reduce,
        **{name: ALL_REDUCE[name] for name in names},
    }


def main(rank: int, n: int, latency: float, rate: float) -> None:
    """Be one rank; rank 0 prints [name, bytes, measured, predicted] for each function and size."""
    import torch
    import torch.distributed as dist

    from distlab.simulated import backend, notes
    from distlab.simulated.network import Network

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{shaping.address(0)}:29400", rank=rank, world_size=n
    )
    calls = {}
    for name, fn in functions().items():
        for size in SIZES:
            calls[name, size] = partial(fn, torch.zeros(size // 4))
    real = {key: partial(call, group=dist.group.WORLD) for key, call in calls.items()}
    measured = slowest_in_turns(real, REPEAT)
    backend.register()
    simulated = dist.new_group(backend=backend.SIMULATED)
    notes.use(Network(latency, rate * GOODPUT, handshake=True, algorithms={"all_reduce": "ring"}))
    for key, call in calls.items():
        predicted = notes.seconds_of(partial(call, group=simulated), (), simulated)
        if rank == 0:
            print(json.dumps([*key, statistics.median(measured[key]), predicted]))
    dist.destroy_process_group()


def measure(n: int, latency: float, rate: float) -> list[list]:
    """The rows of `main` on a network of n hosts."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": shaping.DEVICE, "OMP_NUM_THREADS": "1"}
    with shaping.network(n, latency, rate) as hosts:
        ranks = []
        for rank, on_host in enumerate(hosts):
            program = [
                sys.executable,
                "-m",
                "benchmarks.shaped",
                str(rank),
                str(n),
                str(latency),
                str(rate),
            ]
            ranks.append(
                subprocess.Popen(
                    [*on_host, *program], env=environment, stdout=subprocess.PIPE, text=True
                )
            )
        outputs = [process.communicate(timeout=600)[0] for process in ranks]
    return [json.loads(line) for line in outputs[0].splitlines()]


def report(n: int) -> str:
    """A Markdown table of prediction against measurement on n hosts."""
    try:
        columns = [measure(n, *which) for which in NETWORKS]
    except (ClusterError, subprocess.CalledProcessError) as error:
        return f"The simulation was not compared with shaped networks: {error}"
    heads = [f"{latency * 1e3:g} ms, {rate / 1e6:g} MB/s" for latency, rate in NETWORKS]
    lines = [
        f"| {n} hosts | bytes | {' | '.join(heads)} |",
        "|---|---:|" + "---:|" * len(NETWORKS),
    ]
    for rows in zip(*columns, strict=True):
        name, size, *_ = rows[0]
        cells = []
        for _, _, measured, predicted in rows:
            cells.append(f"{measured * 1e3:.1f} ms, {predicted / measured:.2f}")
        lines.append(f"| {name} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
