"""Ranks that wait on although they are freed again and again, after another rank has failed.

Runs on the notebook's kernel, called by cell.py.
"""

from __future__ import annotations

from distlab.notebook import seconds
from distlab.notebook.patience import Patience
from distlab.notebook.ranks import Ranks
from distlab.wire.messages import COMMUNICATING, RankStatus


class HeldRanks:
    """Ranks that stay in a wait in communication although they are freed again and again.

    Once another rank has failed, nothing else would end such a wait: in compiled code that has no
    connection, or in a loop of the learner's that never looks whether its rank was freed.

    Args:
        ranks: the ranks of the cluster.

    Attributes:
        too_long: whether they have stayed there for too long.
    """

    def __init__(self, ranks: Ranks):
        self.too_long = False
        self._ranks = ranks
        self._states: dict[int, RankStatus] = {}
        self._patience: Patience | None = None

    def look(self, late: list[int]) -> bool:
        """Whether all ranks that are late, and were freed just now, stay where they are for long.

        A rank that computes is left alone, and so are those beside it: its part may take a while.
        """
        before = self._states
        self._states = self._ranks.states(late)
        all_stay = all(rank in before and self._stays(rank, before[rank]) for rank in late)
        if not late or not all_stay:
            self._patience = None
            return False
        if self._patience is None:
            self._patience = self._ranks.patience(late)
        self.too_long = all(self._patience.own_time(rank) >= seconds.GIVE_UP for rank in late)
        return self.too_long

    def _stays(self, rank: int, before: RankStatus) -> bool:
        """Whether a rank is in the same wait as at the look before."""
        now = self._states[rank]
        if now.doing != COMMUNICATING or before.doing != COMMUNICATING:
            return False
        return (now.call, now.fingerprint) == (before.call, before.fingerprint)
