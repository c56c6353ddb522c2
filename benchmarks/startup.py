"""From a new Python process to the first all_reduce, distlab beside its peers, in turns."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = str(Path(__file__).with_name("programs.py"))
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def commands(n: int) -> dict[str, list[str]]:
    """The contestants: name -> command line."""
    python = sys.executable
    return {
        "import torch": [python, PROGRAMS, "import_torch", str(n)],
        "distlab": [python, PROGRAMS, "distlab", str(n)],
        "torchrun --standalone": [python, *TORCHRUN, str(n), PROGRAMS, "worker", str(n)],
        "mp.spawn": [python, PROGRAMS, "spawn", str(n)],
        "accelerate debug_launcher": [python, PROGRAMS, "debug_launcher", str(n)],
        "stock ipyparallel": [python, PROGRAMS, "ipyparallel", str(n)],
    }


def seconds_until_ready(command: list[str]) -> float:
    """Seconds from before the process starts until it prints "ready"; waits for its end before it returns."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stdout:
            if line.strip() == "ready":
                seconds = time.perf_counter() - began
                process.stdout.read()
                return seconds
    raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode} before it was ready")


def measure(n: int, repeat: int) -> dict[str, list[float]]:
    """Seconds of each contestant, `repeat` times, in turns, after one round that does not count."""
    contestants = commands(n)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeat + 1):
        for name, command in contestants.items():
            took = seconds_until_ready(command)
            if turn:
                seconds[name].append(took)
    return seconds
