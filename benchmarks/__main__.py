"""Runs every benchmark and prints its tables: `make bench`, or `python -m benchmarks [--ranks 4] [--repeat 5]`.

Every figure is a median; what is compared was measured in turns in the same run, so that the ratios hold on a machine
whose speed drifts.
"""

from __future__ import annotations

import argparse
import os
import statistics

from benchmarks import cells, startup


def table(title: str, seconds: dict[str, list[float]], reference: str) -> str:
    """A Markdown table: median, spread, and the ratio to the reference's median."""
    base = statistics.median(seconds[reference])
    rows = [f"### {title}", "", f"| | median | quickest to slowest | times {reference} |", "|---|---:|---:|---:|"]
    for name, values in sorted(seconds.items(), key=lambda item: statistics.median(item[1])):
        median = statistics.median(values)
        spread = f"{form(min(values))} to {form(max(values))}"
        rows.append(f"| {name} | {form(median)} | {spread} | {median / base:.2f} |")
    return "\n".join(rows)


def form(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    n, repeat = chosen.ranks, max(1, chosen.repeat)
    print(f"{n} ranks on {os.cpu_count()} cores, medians of {repeat} (cells: {repeat * 20})\n", flush=True)
    seconds = startup.measure(n, repeat)
    print(table(f"New Python process to the first all_reduce on {n} ranks", seconds, "import torch"), "\n", flush=True)
    for title, measured in cells.measure(n, repeat * 20).items():
        print(table(f"Warm: {title}, {n} ranks", measured, list(measured)[-1]), "\n", flush=True)


if __name__ == "__main__":
    main()
