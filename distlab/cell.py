"""One cell on its way: wait for its ranks, free those that wait for a failed one, and tell what became of it.

Runs on the notebook's kernel; called by cluster.py for `run`, `push` and `pull`, and by magics.py for %%px.
"""

from __future__ import annotations

import signal
import time
from typing import Any

from distlab import diagnosis, display, live, sentinel
from distlab.errors import Failure, Interrupted, RankTimeout
from distlab.ranks import Ranks
from distlab.remote import on_rank

AGAIN_SECONDS = 0.5  # before a rank that has not come back is asked again
GRACE_SECONDS = 2.0  # before it is interrupted whatever it does, and before it is given up


class Cell:
    """Code that was sent to some ranks.

    Args:
        ranks: the ranks of the cluster. result: ipyparallel's AsyncResult.
        targets: the ranks that run it, in the result's order.
    """

    def __init__(self, ranks: Ranks, result: Any, targets: list[int]):
        self._ranks, self._result, self._targets = ranks, result, targets

    def finish(
        self,
        timeout: float | None = None,
        groupby: str = "type",
        live_after: float | None = live.LIVE_AFTER_SECONDS,
        interrupt_with: int = signal.SIGINT,
    ) -> list[Any]:
        """Wait for the ranks, show what they wrote, and return their replies in the order of the targets.

        Args:
            timeout: seconds; None waits without a limit.
            live_after: seconds before the newest lines are shown; None never.
            interrupt_with: the signal that busy ranks get when the wait is interrupted; 0 leaves them alone.

        Raises:
            RankError, RankDied, RankTimeout, Interrupted (a KeyboardInterrupt).
        """
        watch = live.Watch(self._result, self._targets, live_after)
        number = signal.SIGINT
        try:
            done = watch.wait(timeout, lambda: self._free_waiting(watch))
        except KeyboardInterrupt:
            done, number, timeout = False, interrupt_with, None
        late = watch.unfinished()
        if not done:
            self._interrupt(watch, number)
        display.show(self._result, self._targets, groupby, watch.place)
        if not done:
            self._raise_late(late, watch.unfinished(), timeout)
        return self.replies()

    def replies(self) -> list[Any]:
        """The replies of a cell that has ended, in the targets' order; RankError or RankDied when a rank failed."""
        replies = self._result.get(return_exceptions=True)
        failures = self._failures()
        self._raise_if_dead()
        if failures:
            self._raise_failed(failures)
        return replies

    def _raise_if_dead(self) -> None:
        """Raise RankDied when the process of a rank of this cell has ended."""
        died = {rank: how for rank, how in self._ranks.lost.items() if rank in self._targets}
        if died:
            survivors = [rank for rank in range(self._ranks.plan.n) if rank not in self._ranks.lost]
            raise diagnosis.rank_died(died, survivors, self._ranks.can_respawn)

    def _interrupt(self, watch: live.Watch, number: int) -> None:
        """Bring the busy ranks back, gently where `number` is SIGINT, the default; else by that signal."""
        self._ranks.broken = True
        if number == signal.SIGINT:
            deadline = time.monotonic() + GRACE_SECONDS
            while watch.unfinished() and time.monotonic() < deadline:
                self._ranks.signal(watch.unfinished(), sentinel.COME_BACK)
                self._result.wait(AGAIN_SECONDS)
        self._ranks.signal(watch.unfinished(), number)
        self._result.wait(GRACE_SECONDS)

    def _free_waiting(self, watch: live.Watch) -> None:
        """Free the ranks that wait in communication, once another rank of the cell has failed."""
        if any(_is_failure(reply) for reply in watch.replies().values()):
            self._ranks.signal(watch.unfinished(), sentinel.FREE)

    def _failures(self) -> list[Failure]:
        """What the ranks that have answered raised; ranks whose process ended are noted as lost instead."""
        replies = live.Watch(self._result, self._targets).replies()
        raised = {r: reply for r, reply in replies.items() if isinstance(reply, Exception) and not _is_death(reply)}
        asked = {rank: self._ranks.client[rank].apply_async(on_rank, "last_failure") for rank in raised}
        deadline = time.monotonic() + GRACE_SECONDS
        failures = []
        for rank, reply in replies.items():
            if _is_death(reply):
                self._ranks.note_death(rank)
            elif rank in raised:
                failures.append(_failure_of_cell(rank, reply, asked[rank], deadline - time.monotonic()))
            elif _is_failure(reply):
                failures.append(diagnosis.failure(rank, reply[1]))
        return failures

    def _raise_failed(self, failures: list[Failure]) -> None:
        """Raise RankError, after the group was rebuilt where it may be damaged."""
        n = self._ranks.plan.n
        alike = len(failures) == n and len({(f.kind, f.message, f.lines) for f in failures}) == 1
        healed, subgroups = False, 0
        if n > 1 and (not alike or any(f.communicated for f in failures)):
            # a message that one rank sent and nobody received would be taken by the next cell's recv
            healed, subgroups = True, self._ranks.rebuild()
        raise diagnosis.rank_error(failures, self._targets, self._ranks.plan.timeout, healed, subgroups)

    def _raise_late(self, late: list[int], busy: list[int], timeout: float | None) -> None:
        """Raise for ranks that were interrupted; `busy` ones still are. `timeout` is None when a person interrupted."""
        failures = self._failures()
        self._raise_if_dead()
        subgroups = 0 if busy else self._ranks.rebuild()
        culprits = [f for f in failures if f.rank not in late and not f.consequence]
        if timeout is not None and culprits and not busy:
            raise diagnosis.rank_error(failures, self._targets, self._ranks.plan.timeout, True, subgroups)
        stuck = [f for f in failures if f.rank in late]
        message = diagnosis.late(stuck, self._targets, late, busy, timeout)
        raise Interrupted(message) if timeout is None else RankTimeout(message, tuple(stuck))


def _failure_of_cell(rank: int, reply: Any, asked: Any, patience: float) -> Failure:
    """What a %%px cell raised on a rank, as the rank tells it; what ipyparallel knows while the rank is busy."""
    try:
        told = asked.get(timeout=max(0.0, patience))
    except TimeoutError:
        told = None
    if told is None or told["kind"] != getattr(reply, "ename", told["kind"]):
        return Failure(rank, getattr(reply, "ename", type(reply).__name__), getattr(reply, "evalue", str(reply)))
    return diagnosis.failure(rank, told)


def _is_death(reply: Any) -> bool:
    """Whether a reply is ipyparallel's word that the engine has died."""
    return type(reply).__name__ == "EngineError" or getattr(reply, "ename", "") == "EngineError"


def _is_failure(reply: Any) -> bool:
    """Whether a rank answered with an exception: ipyparallel's own for a %%px cell, worker.py's report for a run."""
    return isinstance(reply, Exception) or (isinstance(reply, list) and reply[:1] == ["error"])
