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

from benchmarks import (
    all_reduce,
    cells,
    data_parallel,
    hosts,
    life,
    mpi,
    plot,
    point_to_point,
    rebuild,
    remote_calls,
    shaped,
    startup,
    stuck,
    tensors,
    traces,
)

ROOT = Path(__file__).resolve().parent.parent
COUNTS = [1, 2, 4, 8, 16, 32, 64]


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


def growth(rows: list[dict[str, float]], base: float) -> str:
    """A Markdown table of what more ranks cost, with the limits of a warm run beside it."""
    heads = (
        "ranks",
        "to the first all_reduce",
        "times import torch",
        "MB a rank",
        "warm run",
        "apply_sync",
        "gloo alone",
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---:|" * len(heads)]
    for row in rows:
        values = (form(row["start"]), f"{row['start'] / base:.2f}", f"{row['megabytes']:.0f}")
        lines.append(
            f"| {' | '.join((str(row['ranks']), *values, *(form(row[k]) for k in ('run', 'apply_sync', 'gloo'))))} |"
        )
    return "\n".join(lines)


def write(tables: list[str]) -> None:
    """Put the tables between the markers of benchmarks/README.md."""
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
        f"of {repeat * 20} for warm calls and of {repeat * 6} for training steps. More ranks than cores take turns."
    )
    seconds, memory = startup.measure(n, repeat)
    base = statistics.median(seconds["import torch"])
    show(compared(f"new Python process to the first all_reduce, {n} ranks", seconds, base, "import torch", memory))
    steps = life.measure(n, repeat)
    show(
        compared(
            "in a kernel where torch is imported", steps, statistics.median(steps[f"Cluster({n})"]), f"Cluster({n})"
        )
    )
    groups = rebuild.measure(n, repeat * 40)
    title = f"the group of {n} ranks rebuilt, {repeat * 40} cycles"
    show(compared(title, groups, statistics.median(groups[rebuild.BY_HAND]), "by hand"))
    measured = {
        **cells.measure(n, repeat * 20),
        **tensors.measure(n, repeat),
        **stuck.measure(n, repeat * 20),
        **traces.measure(n, repeat * 4),
        **remote_calls.measure(repeat),
        **mpi.measure(n, repeat * 20),
    }
    for title, contestants in measured.items():
        peer = list(contestants)[-1]
        show(compared(f"warm: {title}", contestants, statistics.median(contestants[peer]), peer))
    freed = stuck.stuck_cells(n, repeat)
    show(compared(f"until a stuck cell of {n} ranks is told, freed and rebuilt", freed, 1.0, "a second"))
    steps = data_parallel.measure(n, repeat * 6)
    title = f"one training step, {n} ranks, 9.8 million parameters"
    show(compared(title, steps, statistics.median(steps[data_parallel.DDP]), data_parallel.DDP))
    seconds_of_digits = data_parallel.digits(2, repeat)
    show(
        f"From a new Python process to digits of which {data_parallel.ENOUGH:.0%} of those not trained on are "
        f"recognised, 2 ranks: {form(statistics.median(seconds_of_digits))} "
        f"({form(min(seconds_of_digits))} to {form(max(seconds_of_digits))})."
    )
    show(growth(life.sizes(COUNTS, min(repeat, 3)), base))
    for what, contestants in hosts.measure(repeat).items():
        peer = list(contestants)[-1]
        if contestants[peer]:
            show(compared(f"4 ranks on two hosts: {what}", contestants, statistics.median(contestants[peer]), peer))
    show(traces.picture())
    show(point_to_point.report(repeat * 5))
    for count in all_reduce.RANKS:
        show(all_reduce.report(count, repeat))
    for count in shaped.RANKS:
        show(shaped.report(count))
    if chosen.write:
        plot.startup_bars(seconds, n, ROOT / "benchmarks" / "startup.svg")
        write(tables)


if __name__ == "__main__":
    main()
