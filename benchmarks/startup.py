"""From a new Python process to the first all_reduce, distlab beside its peers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import Found, in_turns

PROGRAMS = str(Path(__file__).with_name("programs.py"))
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def commands(n: int) -> dict[str, list[str]]:
    """The contestants: name -> the words after Python in its command line."""
    return {
        "distlab": [PROGRAMS, "distlab", str(n)],
        "torchrun --standalone": [*TORCHRUN, str(n), PROGRAMS, "worker", str(n)],
        "mp.spawn": [PROGRAMS, "spawn", str(n)],
        "accelerate debug_launcher": [PROGRAMS, "debug_launcher", str(n)],
        "stock ipyparallel": [PROGRAMS, "ipyparallel", str(n)],
        "import torch": [PROGRAMS, "import_torch", str(n)],
    }


def run(words: list[str]) -> tuple[float, list[float]]:
    """Seconds from before the process starts until it is ready, and each rank's memory in MB.

    Waits for its end.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
    }
    seconds = None
    megabytes = []
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        for line in process.stdout:
            if line.strip() == "ready":
                seconds = time.perf_counter() - began
            elif line.startswith("memory "):
                megabytes.append(float(line.split()[1]))
    if seconds is None:
        raise RuntimeError(
            f"{' '.join(words)} ended with status {process.returncode} before it was ready"
        )
    return seconds, megabytes


def measure(n: int, repeat: int) -> tuple[Found, dict[str, float]]:
    """Each contestant's seconds, and its MB a rank."""
    runs = in_turns(
        {name: partial(run, words) for name, words in commands(n).items()}, repeat, warm_up=1
    )
    seconds = {name: [took for took, _ in own] for name, own in runs.items()}
    memory = {name: max(megabytes) for name, [*_, (_, megabytes)] in runs.items()}
    return seconds, memory
