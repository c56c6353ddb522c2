"""Looks at the ranks while a cell runs, and says when none of them can go on.

Runs on the notebook's kernel, called by cell.py at every tick of its wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from distlab import deadlock
from distlab.deadlock import Need, State
from distlab.line import Line

UNMOVED_SECONDS = 0.7  # a proof counts when nothing has moved on any rank for so long
ANSWER_SECONDS = 0.5  # what a rank has to answer when its state is to be reported


class Lookout:
    """What the ranks of a cluster did at the last look, and since when nothing has moved.

    Args:
        with_work: gives the ranks that were sent something which they have not answered yet: an idle one among them has
            not begun, or its answer is on its way.

    Attributes:
        states: by rank, from the last look. needs: why nobody can go on; empty until it is proven.
    """

    def __init__(self, line: Line, ranks: Iterable[int], with_work: Callable[[], set[int]]):
        self._line, self._ranks, self._with_work = line, list(ranks), with_work
        self._since = time.monotonic()
        self.states: dict[int, State] = {}
        self.needs: dict[int, Need] = {}

    def look(self) -> bool:
        """Ask every rank; True when there is a deadlock, and nothing has moved since it was there."""
        before = self.states
        began = time.monotonic()
        self.states = self._ask(self._line.ask)
        needs = deadlock.proof(self.states)
        if needs is None or not deadlock.unmoved(before, self.states):
            self._since = began
            return False
        if time.monotonic() - self._since < UNMOVED_SECONDS:
            return False
        self.needs = needs
        return True

    def report(self, ask: Callable[..., dict[int, dict[str, Any]]]) -> dict[int, State]:
        """The states now, asked for by `ask`, which has more patience than the line."""
        self.states = self._ask(ask, ANSWER_SECONDS)
        return self.states

    def _ask(self, ask: Callable[..., dict[int, dict[str, Any]]], *seconds: float) -> dict[int, State]:
        with_work = self._with_work()
        answers = ask(self._ranks, *seconds)
        return {rank: State.of(rank, answers.get(rank), rank in with_work) for rank in self._ranks}
