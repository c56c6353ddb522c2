"""Runs every benchmark and prints its tables: `make bench`; --ranks, --repeat, --write (into benchmarks/README.md).

Every figure is a median. What is compared was measured in turns in the same run, so that ratios hold on a machine whose
speed drifts. `--write` puts the tables and the plot of the start-up into benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from pathlib import Path

from benchmarks import all_reduce, cells, hosts, mpi, shaped, startup, stuck
from distlab import plotting

ROOT = Path(__file__).resolve().parent.parent


def form(seconds: float) -> str:
    """Seconds with the digits that a noisy machine can give."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def compared(title: str, seconds: dict[str, list[float]], base: float, unit: str, memory: dict | None = None) -> str:
    """A Markdown table, the quickest first: median, spread, ratio to `base` (what `unit` names), memory."""
    head = f"| {title} | median | quickest to slowest | times {unit} |" + (" MB a rank |" if memory else "")
    rows = [head, "|---|---:|---:|---:|" + ("---:|" if memory else "")]
    for name, values in sorted(seconds.items(), key=lambda item: statistics.median(item[1])):
        median = statistics.median(values)
        spread = f"{form(min(values))} to {form(max(values))}"
        more = f" {memory[name]:.0f} |" if memory else ""
        rows.append(f"| {name} | {form(median)} | {spread} | {median / base:.2f} |{more}")
    return "\n".join(rows)


def write(tables: list[str], steps: dict[str, tuple[float, float, float]], n: int) -> None:
    """Put the tables between the markers of benchmarks/README.md, and draw the start-up as other figures are.

    Args:
        steps: by contestant, the quickest first, the median, lowest and highest seconds to the first all_reduce.
        n: number of ranks.
    """
    ax = plotting.step_times(steps, f"to the first all_reduce on {n} ranks")
    ax.set_xlabel("from a new Python process")
    ax.figure.savefig(ROOT / "benchmarks" / "startup.svg")
    readme = ROOT / "benchmarks" / "README.md"
    text = "\n\n".join(
        ["<!-- bench -->", "![Seconds to the first all_reduce](startup.svg)", *tables, "<!-- /bench -->"]
    )
    readme.write_text(re.sub(r"<!-- bench -->.*<!-- /bench -->", lambda _: text, readme.read_text(), flags=re.DOTALL))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/README.md")
    chosen = parser.parse_args()
    n, repeat = chosen.ranks, max(1, chosen.repeat)
    tables = []

    def show(table: str) -> None:
        tables.append(table)
        print(table, end="\n\n", flush=True)

    show(
        f"Measured on {os.cpu_count()} cores with Python {sys.version.split()[0]}: medians of {repeat}, "
        f"of {repeat * 20} for warm calls. More ranks than cores take turns."
    )
    seconds, memory = startup.measure(n, repeat)
    base = statistics.median(seconds["import torch"])
    show(compared(f"new Python process to the first all_reduce, {n} ranks", seconds, base, "import torch", memory))
    warm = {**cells.measure(n, repeat * 20), **stuck.measure(n, repeat * 20), **mpi.measure(n, repeat * 20)}
    far = {f"4 ranks on two hosts: {what}": seconds for what, seconds in hosts.measure(repeat).items()}
    for title, contestants in {**{f"warm: {title}": found for title, found in warm.items()}, **far}.items():
        peer = list(contestants)[-1]
        if contestants[peer]:  # no hosts can be made everywhere
            show(compared(title, contestants, statistics.median(contestants[peer]), peer))
    freed = stuck.stuck_cells(n, repeat)
    show(compared(f"until a stuck cell of {n} ranks is reported, freed and rebuilt", freed, 1.0, "a second"))
    for count in all_reduce.RANKS:
        show(all_reduce.report(count, repeat))
    for count in shaped.RANKS:
        show(shaped.report(count))
    if chosen.write:
        steps = {name: (statistics.median(own), min(own), max(own)) for name, own in seconds.items()}
        write(tables, dict(sorted(steps.items(), key=lambda step: step[1])), n)


if __name__ == "__main__":
    main()
