"""DDP's step on four ranks and in another size, predicted from a trace of two, and measured.

The ranks are hosts of a shaped network (shaping.py), whose links are so slow that processors wait
for them: four ranks on two cores would take turns otherwise, and no four devices do that.
`report` runs it; `python -m benchmarks.from_trace RANK RANKS WIDTH TRACE` is one rank.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import shaping
from benchmarks.shaped import GOODPUT
from distlab.errors import ClusterError

LATENCY, RATE = 2e-3, 12.5e6  # seconds, bytes a second
TRACED = (2, 512)  # ranks, and numbers in a row of the input
CASES = (TRACED, (4, 512), (2, 768), (4, 768))
WARM_UP, REPEAT = 3, 7  # steps
BATCH = 16


def training_step(width: int) -> Callable[[], None]:
    """Make a model of two layers in DDP; return its step."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    hidden = 2 * width
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)),
        bucket_cap_mb=1,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(BATCH, width)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def program(rank: int, n: int, width: int) -> None:
    """What is predicted: DDP has its final buckets from the second step on."""
    step = training_step(width)
    for _ in range(3):
        step()


def main(rank: int, n: int, width: int, trace: str) -> None:
    """Be one rank; rank 0 prints the median seconds of a step, and writes a trace if asked to."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{shaping.address(0)}:29400", rank=rank, world_size=n
    )
    step = training_step(width)
    for _ in range(WARM_UP):
        step()
    seconds = []
    for _ in range(REPEAT):
        dist.barrier()
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        print(statistics.median(seconds))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(REPEAT):
            step()
    if rank == 0 and trace:
        profiler.export_chrome_trace(trace)
    dist.destroy_process_group()


def measure(n: int, width: int, trace: str) -> float:
    """The median seconds of a step on n hosts; a trace is written if it has a name."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": shaping.DEVICE, "OMP_NUM_THREADS": "1"}
    with shaping.network(n, LATENCY, RATE) as hosts:
        ranks = []
        for rank, on_host in enumerate(hosts):
            options = [str(rank), str(n), str(width), trace]
            command = [*on_host, sys.executable, "-m", "benchmarks.from_trace", *options]
            ranks.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # the profiler says when it starts
                    text=True,
                )
            )
        first, *_ = [process.communicate(timeout=600)[0] for process in ranks]
    return float(first)


def report() -> str:
    """A Markdown table of predictions from one trace beside measurements."""
    import distlab

    network = distlab.Network(LATENCY, RATE * GOODPUT, algorithms={"all_reduce": "ring"})
    with tempfile.TemporaryDirectory() as folder:
        trace = str(Path(folder, "trace.json.gz"))
        try:
            measured = [measure(*case, trace if case == TRACED else "") for case in CASES]
        except (ClusterError, subprocess.CalledProcessError) as error:
            return f"No step was predicted from a trace: {error}"
        ranks, width = TRACED
        step = distlab.predict(
            functools.partial(program, width=width), ranks, network, distlab.Device("10 GFLOP/s")
        )
        device = step.calibrated(trace=trace)
    lines = [
        "| ranks | width | measured | predicted | off | from | to |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (ranks, width), seconds in zip(CASES, measured, strict=True):
        step = distlab.predict(functools.partial(program, width=width), ranks, network, device)
        times = [f"{one * 1e3:.0f} ms" for one in (seconds, step.seconds, *step.interval)]
        times.insert(2, f"{step.seconds / seconds - 1:+.1%}")
        lines.append(f"| {ranks} | {width} | {' | '.join(times)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    rank, ranks, width, trace = sys.argv[1:]
    main(int(rank), int(ranks), int(width), trace)
