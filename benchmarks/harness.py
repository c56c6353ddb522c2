"""What the benchmarks share: contestants that take turns, times, tables, README's sections.

Every figure is a median. What is compared was measured in turns in the same run, so that ratios
hold on a machine whose speed drifts. What measures runs on ranks, too.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

Found = dict[str, list[float]]  # seconds by contestant


def seconds_of(call: Callable[[], object], times: int = 1) -> float:
    """Seconds of a call, the mean of several in a row."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def in_turns(
    contestants: Mapping[Any, Callable[[], Any]], repeat: int, warm_up: int = 0
) -> dict[Any, list[Any]]:
    """What each contestant returns, `repeat` times, in turns, after some rounds that do not count.

    Each round has another order, because the second may find the ranks warmer; it is the same on
    all ranks.
    """
    found: dict[Any, list[Any]] = {name: [] for name in contestants}
    for turn in range(repeat + warm_up):
        for name in random.Random(turn).sample(list(contestants), len(contestants)):
            value = contestants[name]()
            if turn >= warm_up:
                found[name].append(value)
    return found


def timed_in_turns(calls: Mapping[str, Callable[[], object]], repeat: int, warm_up: int) -> Found:
    """Seconds of each call, in turns."""
    return in_turns(
        {name: partial(seconds_of, call) for name, call in calls.items()}, repeat, warm_up
    )


def slowest_in_turns(
    calls: Mapping[Any, Callable[[], object]],
    repeat: int,
    warm_up: int = 1,
    times: int = 1,
    barrier: Callable[[], object] | None = None,
    group: Any = None,
) -> dict[Any, list[float]]:
    """Seconds of each call in turns, each after a barrier; the slowest rank's time counts.

    Runs on: every rank of the group, which may be None for all.

    Args:
        times: how often a call is made in a row.
        barrier: in the place of torch's.
    """
    import torch
    import torch.distributed as dist

    def contestant(call: Callable[[], object]) -> float:
        (barrier or dist.barrier)()
        return seconds_of(call, times)

    found = in_turns(
        {name: partial(contestant, call) for name, call in calls.items()}, repeat, warm_up
    )
    slowest = torch.tensor(list(found.values()), dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return dict(zip(found, slowest.tolist(), strict=True))


def form(seconds: float) -> str:
    """Seconds with the digits that a noisy machine can give."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def table(title: str, found: Found, memory: Mapping[str, float] | None = None) -> str:
    """Markdown, the quickest first: median, spread, and ratio to the last contestant.

    MB a rank are in it if they are given.
    """
    *_, peer = found
    base = statistics.median(found[peer])
    head = f"| {title} | median | quickest to slowest | times {peer} |" + (
        " MB a rank |" if memory else ""
    )
    rows = [head, "|---|---:|---:|---:|" + ("---:|" if memory else "")]
    for name, seconds in sorted(found.items(), key=lambda item: statistics.median(item[1])):
        median = statistics.median(seconds)
        spread = f"{form(min(seconds))} to {form(max(seconds))}"
        more = f" {memory[name]:.0f} |" if memory else ""
        rows.append(f"| {name} | {form(median)} | {spread} | {median / base:.2f} |{more}")
    return "\n".join(rows)


def write(section: str, text: str) -> None:
    """Put a text between the two marks of a section in benchmarks/README.md."""
    readme = Path(__file__).with_name("README.md")
    begin = f"<!-- {section} -->"
    end = f"<!-- /{section} -->"
    before, rest = readme.read_text().split(begin)
    _, after = rest.split(end)
    readme.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
