"""Ranks are brought back from what they are doing: freed, interrupted, or ended if nothing helps.

Runs on the notebook's kernel: cell.py calls it for a cell that cannot go on, cluster.py for
`Cluster.interrupt`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from distlab.compat.ipyparallel import Replies
from distlab.diagnosis import afterwards
from distlab.errors import ClusterError
from distlab.notebook import interrupts, seconds
from distlab.notebook.ranks import Ranks
from distlab.rank import entry
from distlab.wire import messages
from distlab.wire.messages import RankStatus
from distlab.words import rank_list


def free_all(ranks: Ranks) -> dict[int, str]:
    """Interrupt whatever the ranks are doing, and return when all of them are idle.

    Returns:
        the same as `bring_back`.
    """
    ranks.mark_dead_ranks()
    living = [rank for rank in range(ranks.plan.n) if rank not in ranks.lost]
    if not living:
        return {}
    sent = ranks.send(living, entry.settle_orders)
    replaced = bring_back(ranks, sent, ranks.states(living))
    if busy := sent.unfinished():
        raise ClusterError(f"{rank_list(busy)} cannot be freed. Call cluster.restart().")
    return replaced


def bring_back(ranks: Ranks, sent: Replies, states: Mapping[int, RankStatus]) -> dict[int, str]:
    """Free and interrupt busy ranks.

    A rank that is not free in time, or that a person interrupts a second time, is ended; a new
    process takes its place when the group is rebuilt.

    Args:
        ranks: of the cluster.
        sent: what they were sent; those that have not replied are busy.
        states: what they are doing. Ranks that wait in communication are only freed at first: an
            interrupt could hit an exception that is being raised.

    Returns:
        for every rank that had to be ended, what is lost with it, in words.
    """
    ranks.distrust_connections()
    with contextlib.suppress(KeyboardInterrupt), interrupts.allowed():
        _free_until_given_up(ranks, sent, states)
    hopeless = sorted(set(sent.unfinished()) - set(ranks.lost))
    if not hopeless or not ranks.plan.forks:
        return {}
    answers = ranks.patience(hopeless).ask(seconds.ANSWER_FOR_REPORT, messages.VARIABLES)
    ranks.kill(hopeless)
    sent.result.wait(seconds.LAST_FAILURE)
    losses = {}
    for rank in hopeless:
        ranks.dead.mark_dead(rank)
        variables: tuple[str, ...] = ()
        if rank in answers:
            variables = answers[rank].variables or ()
        losses[rank] = afterwards.words_of_loss(variables)
    return losses


def _free_until_given_up(ranks: Ranks, sent: Replies, states: Mapping[int, RankStatus]) -> None:
    """Free and interrupt busy ranks until each is free, is dead, or has used up its time limit."""
    patience = ranks.patience(sent.unfinished())
    only_freed = {rank for rank, state in states.items() if state.doing == messages.COMMUNICATING}
    given_up: set[int] = set()
    busy = set(sent.unfinished()) - set(ranks.lost)
    while busy:
        ranks.free(busy & only_freed, messages.FREE)
        ranks.channel.ask(busy - only_freed, 0, messages.COME_BACK)
        only_freed = set()
        sent.result.wait(seconds.AGAIN)
        given_up |= patience.given_up(busy)
        busy = set(sent.unfinished()) - given_up - set(ranks.lost)
