"""`distlab run` beside torchrun: the start, the end, and a program that prints a lot.

Run it with `python -m benchmarks.launch`; --write puts its tables into benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from benchmarks.harness import Found, in_turns, table, write
from benchmarks.startup import PROGRAMS

RANKS = (2, 4)
LINES = 60_000  # that each rank prints
LINES_A_SECOND = 20_000
LAUNCHERS = {
    "distlab run": ["distlab", "run"],
    "torchrun --standalone": ["torch.distributed.run", "--standalone"],
}


def launched(launcher: str, n: int, words: list[str]) -> tuple[float, float, list[str]]:
    """Launch a program on n ranks.

    Returns:
        seconds until the first line that is "ready", seconds until its end, and all other lines.
    """
    command = [sys.executable, "-m", *LAUNCHERS[launcher], "--nproc-per-node", str(n), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ready = 0.0
    others = []
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stdout:
            if line.strip() == "ready":
                ready = ready or time.perf_counter() - began
            else:
                others.append(line)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return ready, time.perf_counter() - began, others


def seconds_of_printing(launcher: str, n: int) -> float:
    """Seconds that the slowest rank takes for its lines, as it has measured them itself."""
    _, _, lines = launched(launcher, n, [__file__, "print"])
    took = [float(line.removeprefix("took ")) for line in lines if line.startswith("took ")]
    printed = len(lines) - len(took)
    if len(took) != n or printed != n * LINES:
        raise RuntimeError(f"{launcher}: {printed:,} lines of {n * LINES:,} arrived")
    return max(took)


def print_lines() -> None:
    """Print lines at a steady rate, and then how long that took. Runs on: every rank."""
    began = time.perf_counter()
    for number in range(LINES):
        print("step", number, "loss 0.6931")
        if number % 200 == 0:
            due = began + number / LINES_A_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
    sys.stdout.flush()
    print("took", time.perf_counter() - began, flush=True)


def measure(n: int, repeat: int) -> dict[str, Found]:
    """Tables of contestants: to the first all_reduce, to the end, and printing."""
    worker = [PROGRAMS, "worker", str(n)]
    starts: dict[str, Callable[[], tuple[float, float, list[str]]]] = {}
    printing: dict[str, Callable[[], float]] = {}
    for launcher in LAUNCHERS:
        starts[launcher] = partial(launched, launcher, n, worker)
        printing[launcher] = partial(seconds_of_printing, launcher, n)
    runs = in_turns(starts, repeat, warm_up=1)
    ready = {name: [run[0] for run in own] for name, own in runs.items()}
    ended = {name: [run[1] for run in own] for name, own in runs.items()}
    lines = f"{LINES:,} lines, {LINES_A_SECOND:,} a second from each of {n} ranks"
    return {
        f"from the command to the first all_reduce, {n} ranks": ready,
        f"from the command to its end, {n} ranks": ended,
        lines: in_turns(printing, max(1, repeat // 2), warm_up=0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launch", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="into benchmarks/README.md")
    chosen = parser.parse_args()
    load, *_ = os.getloadavg()
    cores = os.cpu_count()
    texts = [f"Medians of {chosen.repeat} on {cores} cores; the load before was {load:.1f}."]
    for n in RANKS:
        for title, found in measure(n, max(1, chosen.repeat)).items():
            texts.append(table(title, found))
            print(texts[-1], end="\n\n", flush=True)
    if chosen.write:
        write("launch", "\n\n".join(texts))


if __name__ == "__main__":
    if sys.argv[1:] == ["print"]:
        print_lines()
    else:
        main()
