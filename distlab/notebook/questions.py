"""What a person may ask of ranks at any time; that disturbs nothing, also while they are busy.

Runs on the notebook's kernel, called by cluster.py, cell.py, and magics.py for completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distlab.compat.ipyparallel import Replies
from distlab.diagnosis import report
from distlab.notebook import seconds
from distlab.notebook.ranks import Ranks
from distlab.rank import entry
from distlab.wire import messages, pickling


def describe(ranks: Ranks) -> list[dict[str, Any]]:
    """Number, process id, state in words and memory in megabytes of each rank.

    `Cluster.describe` says what each row holds.
    """
    lost = dict(ranks.lost)
    for rank in ranks.dead.newly_dead():
        lost[rank] = ranks.dead.exit_reason(rank)
    there = [rank for rank in range(ranks.plan.n) if rank not in lost]
    words = {rank: ending.words() for rank, ending in lost.items()}
    for rank, status in ranks.states(there, patient=True).items():
        words[rank] = report.activity(status)
    megabytes = megabytes_by_rank(ranks, seconds.ANSWER_FOR_REPORT)
    hosts = ranks.hosts
    rows = []
    for rank, joined in enumerate(ranks.joined):
        row = {
            "rank": rank,
            "pid": joined.pid,
            "state": words[rank],
            "megabytes": megabytes.get(rank),
        }
        if hosts:
            row["host"] = hosts[rank]
        rows.append(row)
    return rows


def megabytes_by_rank(ranks: Ranks, limit: float) -> dict[int, float]:
    """Megabytes of each rank that answers within `limit` seconds."""
    there = [rank for rank in range(ranks.plan.n) if rank not in ranks.lost]
    answers = ranks.channel.ask(there, limit, messages.MEMORY)
    found = {}
    for rank, answer in answers.items():
        if answer.megabytes is not None:
            found[rank] = answer.megabytes
    return found


def names(ranks: Ranks, rank: int) -> tuple[str, ...]:
    """The names that cells can use on a rank, also while it is busy: its watchdog answers.

    No names are returned if it does not answer.
    """
    answer = ranks.channel.ask([rank], seconds.ANSWER, messages.NAMES).get(rank)
    if answer is None or answer.variables is None:
        return ()
    return answer.variables


def peek(ranks: Ranks, rank: int, packed: Sequence[Any], limit: float) -> Any:
    """What a function returns on a rank that has nothing else to do.

    None if the rank is busy, or does not answer in time: the question is for a person's
    convenience, and nothing is waited for, interrupted, freed or rebuilt for it.

    Args:
        ranks: of the cluster.
        rank: the one that is asked.
        packed: the arguments of entry.call_function.
        limit: seconds.
    """
    if rank in ranks.lost or rank in ranks.dead.newly_dead():
        return None
    status = ranks.states([rank])[rank]
    if status.doing != messages.IDLE:
        return None
    view = ranks.client.direct_view([rank])
    sent = Replies(view.apply_async(entry.call_function, *packed), [rank])
    reply = sent.within(limit).get(rank)
    if not isinstance(reply, list):  # there is none yet, or an exception in its place
        return None
    header = reply[0]
    if header.failure is not None or header.unsendable:
        return None
    (value,) = pickling.unpack([reply])
    return value
