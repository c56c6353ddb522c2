"""Operations that a cell has left behind: those that nothing can match are shown, and go.

Runs on the notebook's kernel: cell.py calls it after a cell in which a rank has dropped a Work.
"""

from __future__ import annotations

import sys

from distlab.diagnosis import report
from distlab.notebook import paragraphs
from distlab.notebook.ranks import Ranks


def rebuild_without_unmatched(ranks: Ranks, print_report: bool) -> None:
    """Build a new group if nothing can match some operation of the old one any more.

    Args:
        ranks: of the cluster.
        print_report: whether to show a person which operations these are.
    """
    ranks.channel.unwaited = False
    states = ranks.states(range(ranks.plan.n), patient=True)
    unmatched = report.unmatched_operations(states)
    if not unmatched:
        return
    # virtual time goes on, and an operation that a rank may still wait for has to end
    may_wait = any(state.pending or state.more_unwaited for state in states.values())
    stays = ranks.plan.network is not None or may_wait
    gone = ""
    if not stays:
        gone = ranks.rebuild().words()
    if print_report:
        paragraphs.say(report.words_of_unmatched(unmatched, stays, gone), sys.stderr)
