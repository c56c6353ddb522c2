"""One cell on its way: wait for its ranks, free those that wait in vain, and tell what became of it.

Runs on the notebook's kernel; called by cluster.py for `run`, `push` and `pull`, and by magics.py for %%px.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from distlab import diagnosis, display, interrupts, live, mpiexec, report
from distlab.deadlock import COMMUNICATING
from distlab.errors import DeadlockError, Failure, Interrupted, RankTimeout
from distlab.line import FREE
from distlab.lookout import Lookout
from distlab.patience import AGAIN_SECONDS
from distlab.ranks import Ranks
from distlab.remote import on_rank

OUTPUT_SECONDS = 60.0  # for what ranks have written, which may be much, to arrive


class Cell:
    """Code that was sent to some ranks.

    Args:
        ranks: the ranks of the cluster. result: ipyparallel's AsyncResult.
        targets: the ranks that run it, in the result's order. source: the text of a %%px cell, its first line included.
    """

    def __init__(self, ranks: Ranks, result: Any, targets: list[int], source: str = ""):
        self._ranks, self._result, self._targets, self._source = ranks, result, targets, source
        self._lookout = Lookout(ranks.line, range(ranks.plan.n), ranks.with_work)
        self._began = time.monotonic()
        self._pids, self._died = list(ranks.pids), {}  # how those of its ranks have died that did, in words

    def finish(
        self,
        timeout: float | None = None,
        groupby: str = "type",
        live_after: float | None = live.LIVE_AFTER_SECONDS,
        interrupt_with: int = signal.SIGINT,
    ) -> list[Any]:
        """Wait for the ranks, show what they wrote, and return their replies in the order of the targets.

        Args:
            timeout, live_after, interrupt_with: see `wait`. groupby: see display.collect.

        Raises:
            RankError, RankDied, DeadlockError, RankTimeout, Interrupted (a KeyboardInterrupt).
            ClusterError: the process that carries messages between notebook and ranks has ended.
        """
        watch = live.Watch(self._result, self._targets, live_after)
        try:
            self.wait(timeout, interrupt_with, watch, lambda: self._show(groupby, watch))
        finally:
            watch.place.erase()
        return self.replies()

    def _show(self, groupby: str, watch: live.Watch) -> None:
        whole = not watch.unfinished() and not any(map(_is_death, watch.replies().values()))
        with interrupts.allowed():
            display.show(self._result, self._targets, groupby, watch.place, OUTPUT_SECONDS if whole else 1.0)

    @interrupts.held()
    def wait(
        self,
        timeout: float | None = None,
        interrupt_with: int = signal.SIGINT,
        watch: live.Watch | None = None,
        show: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for the ranks; free them and raise when they cannot go on, take too long, or are interrupted.

        Args:
            timeout: seconds; None waits without a limit.
            interrupt_with: the signal that busy ranks get when the wait is interrupted; 0 leaves them alone.
            watch: shows the newest lines meanwhile. show: shows what the ranks wrote, called once when they have ended.
        """
        watch = watch or live.Watch(self._result, self._targets, None)
        number = signal.SIGINT
        try:
            done = watch.wait(timeout, lambda: self._tick(watch))
        except KeyboardInterrupt:
            done, number, timeout = False, interrupt_with, None
        late = watch.unfinished()
        if done:
            show()
            return
        if not self._lookout.needs:
            self._lookout.report(self._ranks.ask)
        if number == 0:
            show()
            advice = "They were left alone and go on: the next cell waits for them, and cluster.interrupt() frees them."
            states = {rank: self._lookout.states[rank] for rank in late}
            raise Interrupted("\n".join([report.late(late, None), report.table(states), advice]))
        waiting = {rank for rank, state in self._lookout.states.items() if state.doing == COMMUNICATING}
        replaced = self._ranks.bring_back(self._result, watch.unfinished, number, waiting)
        seconds = time.monotonic() - self._began
        show()
        self._raise_late(late, watch.unfinished(), replaced, timeout, seconds)

    def replies(self) -> list[Any]:
        """The replies of a cell that has ended, in the targets' order; RankError or RankDied when a rank failed.

        After the end of the cluster nobody can be asked about a failure: replies are all that there is then.
        """
        replies = self._result.get(return_exceptions=True)
        if self._ranks.stopped:
            return replies
        failures = self._failures()
        self._raise_if_dead()
        if failures:
            self._raise_failed(failures)
        return replies

    def _tick(self, watch: live.Watch) -> str | bool:
        """Look after the ranks while they are waited for: False goes on, True stops, a text says what they do."""
        self._ranks.check()
        if any(_is_failure(reply) for reply in watch.replies().values()):
            self._ranks.signal(watch.unfinished(), FREE)
            return False
        return True if self._lookout.look() else report.brief(self._lookout.states)

    def _raise_if_dead(self) -> None:
        """Raise RankDied when the process of a rank of this cell has ended."""
        lost = self._ranks.lost
        if mpiexec.WITH_ANOTHER in lost.values():
            raise diagnosis.all_died(lost)
        if self._died:
            survivors = [rank for rank in range(self._ranks.plan.n) if rank not in {*lost, *self._died}]
            raise diagnosis.rank_died(self._died, survivors, self._ranks.can_respawn, self._ranks.last_lines)

    def _failures(self) -> list[Failure]:
        """What the ranks that have answered raised; ranks whose process ended are noted as lost instead."""
        replies = live.Watch(self._result, self._targets).replies()
        raised = {r: reply for r, reply in replies.items() if isinstance(reply, Exception) and not _is_death(reply)}
        there = raised.keys() & set(self._ranks.client.ids)  # with mpiexec, one may have been ended since
        asked = {rank: self._ranks.client[rank].apply_async(on_rank, "last_failure") for rank in there}
        patience, failures = self._ranks.patience(asked), []
        while (silent := [rank for rank in asked if not asked[rank].ready()]) and not patience.given_up(silent):
            asked[silent[0]].wait(AGAIN_SECONDS)
        for rank, reply in replies.items():
            if _is_death(reply):
                self._died[rank] = self._ranks.note_death(rank, self._pids[rank])
            elif rank in raised:
                failures.append(_failure_of_cell(rank, reply, asked.get(rank)))
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

    def _raise_late(
        self, late: list[int], busy: list[int], replaced: dict[int, str], timeout: float | None, seconds: float
    ) -> None:
        """Raise for ranks that were freed or replaced; `busy` ones still are busy.

        Args:
            replaced: what was lost with ranks that could not be freed. timeout: None when a person interrupted.
            seconds: how long the cell ran until its ranks were free.
        """
        failures = self._failures()
        if not replaced:
            self._raise_if_dead()
        subgroups = 0 if busy else self._ranks.rebuild()
        if timeout is not None and not busy and not replaced:
            self._raise_if_culprit(failures, late, subgroups)
        states = {rank: state for rank, state in self._lookout.states.items() if rank in self._targets}
        needs = self._lookout.needs
        waiting = [r for r in states if states[r].doing == COMMUNICATING]
        found = tuple(Failure(r, "Waiting", report.call_words(states[r].call), states[r].lines) for r in waiting)
        first = report.headline(needs, self._lookout.states, self._targets) if needs else report.late(late, timeout)
        outcome = report.outcome(seconds, busy, replaced, subgroups, self._ranks.plan.n)
        message = "\n".join([first, report.table(states), outcome])
        display.show_source(states, self._source)
        if needs:
            raise DeadlockError(message, found)
        raise Interrupted(message) if timeout is None else RankTimeout(message, found)

    def _raise_if_culprit(self, failures: list[Failure], late: list[int], subgroups: int) -> None:
        """Raise RankError when a rank that had ended in time is at fault for those that had not."""
        if any(f.rank not in late and not f.consequence for f in failures):
            raise diagnosis.rank_error(failures, self._targets, self._ranks.plan.timeout, True, subgroups)


def _failure_of_cell(rank: int, reply: Any, asked: Any) -> Failure:
    """What a %%px cell raised on a rank, as the rank tells it; what ipyparallel knows where it is busy or has ended."""
    try:
        told = asked.get(timeout=0.0) if asked is not None else None
    except Exception as error:
        if not (isinstance(error, TimeoutError) or _is_death(error)):
            raise
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
