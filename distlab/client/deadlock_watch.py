"""Looks at the ranks while a cell runs, and says when none of them can go on.

Runs on the notebook's kernel, called by execution.py at every tick of its wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from distlab.diagnosis import deadlock
from distlab.diagnosis.deadlock import Need
from distlab.wire.messages import SILENT, RankStatus

UNMOVED_SECONDS = 0.7  # a proof counts when nothing has moved on any rank for so long


class DeadlockWatch:
    """What the ranks of a cluster did at the last look, and since when nothing has moved.

    Args:
        ask: gives what every rank does now; called with whether a rank that only waits for a CPU gets more time.

    Attributes:
        states: by rank, from the last look. needs: why nobody can go on; empty until it is proven.
    """

    def __init__(self, ask: Callable[[bool], dict[int, RankStatus]]):
        self._ask, self._since = ask, time.monotonic()
        self.states: dict[int, RankStatus] = {}
        self.needs: dict[int, Need] = {}

    def look(self) -> bool:
        """Ask every rank; True when there is a deadlock, and nothing has moved since it was there."""
        before, began = self.states, time.monotonic()
        self.states = self._ask(any(state.doing == SILENT for state in before.values()))
        needs = deadlock.proof(self.states)
        if needs is None or not deadlock.unmoved(before, self.states):
            self._since = began
        elif time.monotonic() - self._since >= UNMOVED_SECONDS:
            self.needs = needs
        return bool(self.needs)
