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


def run(command: list[str]) -> tuple[float, list[float]]:
    """Seconds from before the process starts until it is ready, and each rank's memory in MB; waits for its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    seconds, megabytes = None, []
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stdout:
            if line.strip() == "ready":
                seconds = time.perf_counter() - began
            elif line.startswith("memory "):
                megabytes.append(float(line.split()[1]))
    if seconds is None:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode} before it was ready")
    return seconds, megabytes


def measure(n: int, repeat: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Each contestant's seconds, `repeat` times in turns after a round that does not count, and its MB a rank."""
    contestants = commands(n)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    memory: dict[str, float] = {}
    for turn in range(repeat + 1):
        for name, command in contestants.items():
            took, megabytes = run(command)
            if turn:
                seconds[name].append(took)
                memory[name] = max(megabytes)
    return seconds, memory
