"""`distlab run --trace FILE`: what the ranks did, in a file for Perfetto and in a few lines.

Runs in the launcher's process, called by running.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from distlab.notebook.cluster import Cluster
from distlab.tables import count, format_bytes
from distlab.traces.trace import Trace

MOST_ROWS = 8  # of the table: those that took longest


@contextlib.contextmanager
def traced(cluster: Cluster, file: str, reports: list[str]) -> Iterator[None]:
    """Record what the ranks do in the block, write it to a file, and add words to `reports`."""
    trace = None
    try:
        with cluster.trace() as trace:
            yield
    finally:
        if trace is not None:
            reports.append(words_of(trace, trace.to_chrome(file)))


def words_of(trace: Trace, file: Path) -> str:
    """What is said at the end: what took longest, and how to look at the file."""
    table = trace.table()
    left_out = len(table.rows) - MOST_ROWS
    lines = [f"Trace: {replace(table, rows=table.rows[:MOST_ROWS])}"]
    if left_out > 0:
        lines.append(f"and {count(left_out, 'more row')}")
    lines += trace.notes()
    size = format_bytes(file.stat().st_size)
    lines.append(f"Written to {file} ({size}): open it at https://ui.perfetto.dev")
    return "\n".join(lines)
