"""Runs every benchmark and prints its tables: `make bench`.

Its options are --ranks, --repeat, and --write (into benchmarks/README.md).

`--write` puts the tables and the plot of the start-up into benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from benchmarks import (
    all_reduce,
    cells,
    comparison,
    from_trace,
    harness,
    hosts,
    mpi,
    shaped,
    startup,
    stuck,
)
from distlab import plotting


def draw(seconds: harness.Found, n: int) -> None:
    """Draw the seconds to the first all_reduce on `n` ranks, the quickest contestant first."""
    quickest_first = sorted(seconds.items(), key=lambda item: statistics.median(item[1]))
    steps = {name: (statistics.median(own), min(own), max(own)) for name, own in quickest_first}
    ax = plotting.step_times(steps, f"to the first all_reduce on {n} ranks")
    ax.set_xlabel("from a new Python process")
    ax.figure.savefig(Path(__file__).with_name("startup.svg"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--write", action="store_true", help="put the tables into benchmarks/README.md"
    )
    chosen = parser.parse_args()
    n = chosen.ranks
    repeat = max(1, chosen.repeat)
    texts = ["![Seconds to the first all_reduce](startup.svg)"]

    def show(text: str) -> None:
        texts.append(text)
        print(text, end="\n\n", flush=True)

    show(
        f"Measured on {os.cpu_count()} cores with Python {sys.version.split()[0]}: "
        f"medians of {repeat}, of {repeat * 20} for warm calls. "
        "More ranks than cores take turns."
    )
    seconds, memory = startup.measure(n, repeat)
    show(harness.table(f"new Python process to the first all_reduce, {n} ranks", seconds, memory))
    for part in (cells, stuck, mpi):
        for title, found in part.measure(n, repeat * 20).items():
            show(harness.table(f"warm: {title}", found))
    freed = stuck.stuck_cells(n, repeat)
    show(harness.table(f"until a stuck cell of {n} ranks is reported, freed and rebuilt", freed))
    show(comparison.report(n, repeat))
    for title, found in hosts.measure(repeat).items():
        show(harness.table(f"4 ranks on two hosts: {title}", found))
    for count in all_reduce.RANKS:
        show(all_reduce.report(count, repeat))
    for count in shaped.RANKS:
        show(shaped.report(count))
    show(from_trace.report())
    if chosen.write:
        draw(seconds, n)
        harness.write("bench", "\n\n".join(texts))


if __name__ == "__main__":
    main()
