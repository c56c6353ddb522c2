"""What ranks return for a call before or after a cell, as far as they answer.

Runs on the notebook's kernel, called by tracing.py and magics.py. Nothing is rebuilt for it, and a
rank that does not answer is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from distlab.notebook import interrupts, seconds
from distlab.notebook.ranks import Ranks


def gather(
    ranks: Ranks, targets: Iterable[int], function: Callable[[], Any]
) -> tuple[dict[int, Any], dict[int, str]]:
    """Have each target call a function.

    Args:
        ranks: of the cluster.
        targets: those that call it.
        function: one that can be found by its name on a rank.

    Returns:
        what it returns on each target that replies in time, by rank, and in words why the others
        did not.
    """
    if ranks.stopped:
        return {}, dict.fromkeys(targets, "the cluster was stopped meanwhile")
    missing: dict[int, str] = {}
    there = []
    for rank in targets:
        if rank not in ranks.client.ids or rank in ranks.lost:
            missing[rank] = f"it {ranks.dead.mark_dead(rank).words()}"
        else:
            there.append(rank)
    if not there:
        return {}, missing
    sent = ranks.send(there, function)
    with interrupts.allowed():
        replies = sent.within(seconds.BUILD)
    received: dict[int, Any] = {}
    for rank in there:
        if rank not in replies:
            missing[rank] = f"no answer came within {seconds.BUILD:g} s"
            continue
        reply = replies[rank]
        if isinstance(reply, Exception):  # ipyparallel's, with the words of what the rank raised
            missing[rank] = getattr(reply, "evalue", f"{type(reply).__name__}: {reply}")
        else:
            received[rank] = reply
    return received, missing
