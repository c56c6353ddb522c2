"""What a cell looks at while it waits: deadlocks, ranks that stay in a wait, and memory.

Runs on the notebook's kernel, called by cell.py again and again.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol

from distlab.diagnosis import proof
from distlab.diagnosis.needs import Need
from distlab.notebook import seconds
from distlab.notebook.patience import Patience
from distlab.notebook.ranks import Ranks
from distlab.wire.messages import COMMUNICATING, SILENT, RankStatus


class AskRanks(Protocol):
    """Asks ranks what they are doing; see `Ranks.states`."""

    def __call__(self, *, patient: bool) -> dict[int, RankStatus]:
        """The status of each rank."""


class DeadlockWatch:
    """What the ranks of a cluster were doing at the last look, and since when nothing has moved.

    Args:
        ask: returns what the ranks are doing; its argument `patient` says whether a rank that only
            waits for a CPU gets more time.

    Attributes:
        states: by rank, from the last look.
        needs: why no rank can go on; empty until it is proven.
    """

    def __init__(self, ask: AskRanks):
        self.ask = ask
        self._since = time.monotonic()
        self.states: dict[int, RankStatus] = {}
        self.needs: dict[int, Need] = {}

    def look(self) -> bool:
        """Ask every rank; True if there is a deadlock, and nothing has moved for a while."""
        before = self.states
        began = time.monotonic()
        was_silent = any(state.doing == SILENT for state in before.values())
        self.states = self.ask(patient=was_silent)
        needs = proof.proof(self.states)
        if needs is None or not proof.unmoved(before, self.states):
            self._since = began
        elif time.monotonic() - self._since >= seconds.UNMOVED:
            self.needs = needs
        return bool(self.needs)


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


class MemoryWatch:
    """The memory of a cell's ranks, which is looked at rarely.

    A process takes long to add up the pages that it shares.

    Args:
        ask: returns megabytes by rank, of the ranks that answer.
    """

    def __init__(self, ask: Callable[[], dict[int, float]]):
        self._ask = ask
        self._asked = -math.inf
        self._megabytes: dict[int, float] = {}

    def look(self, now: float) -> dict[int, float]:
        """Megabytes by rank at the last look; of a rank that did not answer, at an earlier one."""
        if now - self._asked >= seconds.MEMORY_AGAIN:
            self._asked = now
            self._megabytes |= self._ask()
        return self._megabytes
