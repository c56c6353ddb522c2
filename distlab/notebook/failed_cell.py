"""A cell that failed or could not go on: what is known of it becomes one error.

Runs on the notebook's kernel, called by cell.py when the cell's ranks are free. The group is
rebuilt before the error is made, because the error says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distlab.compat.ipyparallel import Replies
from distlab.diagnosis import (
    afterwards,
    deaths,
    failures,
    meanwhile,
    new_groups,
    readable,
    report,
    stuck,
)
from distlab.diagnosis.endings import Ending
from distlab.diagnosis.needs import Need, waiting_ranks
from distlab.errors import DeadlockError, Interrupted, RankDied, RankError, RankTimeout
from distlab.notebook import display, seconds
from distlab.notebook.generation import of_ipyparallel
from distlab.notebook.ranks import Ranks, has_failed
from distlab.rank import entry
from distlab.wire.messages import COMMUNICATING, IDLE, Failure, NewGroup, RankStatus
from distlab.wire.source import Line

# what a rank that is interrupted raises, unless it fails in an except or finally
ENDED = ("KeyboardInterrupt", "CancelledError", "BdbQuit")


@dataclass(frozen=True)
class FailedCell:
    """What is known of a cell that failed or could not go on.

    Attributes:
        ranks: the ranks of the cluster.
        targets: those that ran the cell.
        sent: their replies.
        lost_before: ranks that had died before it was sent.
        source: the text of a %%px cell, its first line included; "" for a function.
        is_checked: whether the ranks compared the arguments of their calls.
        timeout: the cell's time limit, in seconds; None for no limit, or where it was not reached.
        states: what the ranks were doing at the last look.
        needs: why no rank can go on; empty where that is not proven.
        at_first_failure: what the ranks did when the first one had failed or died.
    """

    ranks: Ranks
    targets: list[int]
    sent: Replies
    lost_before: set[int]
    source: str
    is_checked: bool
    timeout: float | None
    states: Mapping[int, RankStatus]
    needs: Mapping[int, Need]
    at_first_failure: Mapping[int, RankStatus]

    # --- the error ---

    def error(self) -> RankError | RankDied:
        """The error for a cell in which ranks raised or died."""
        raised = self._raised()
        died = self._died(replaced={})
        if died:
            return self._rank_died(died, raised, replaced={})
        return self._rank_error(raised)

    def error_of_late(
        self,
        late: list[int],
        replaced: Mapping[int, str],
        duration: float,
        was_interrupted: bool,
    ) -> RankError | RankDied | DeadlockError | RankTimeout | Interrupted:
        """The error for ranks that were freed or replaced, or could not be.

        Args:
            late: the ranks that had not replied.
            replaced: what was lost with each rank that could not be freed.
            duration: seconds that the cell ran until its ranks were free.
            was_interrupted: whether a person has ended the cell.
        """
        raised = self._raised()
        busy = sorted(set(self.sent.unfinished()) - set(self.ranks.lost))
        died = self._died(replaced)
        if died:
            return self._rank_died(died, raised, replaced)
        made = self._groups_that_differ(raised)
        ended = afterwards.EndedWithGroup() if busy else self._rebuild()
        why = [] if was_interrupted else self._why_late(raised, late)
        if why and not busy and not replaced:
            if made:
                return self._groups_error(made, raised, ended)
            told = [self._as_consequence(one) if one.rank in late else one for one in raised]
            return failures.rank_error(told, self.targets, rebuilt=True, gone=ended.words())
        states = {rank: state for rank, state in self.states.items() if rank in self.targets}
        display.show_source(states, self.source)
        headline = self._headline(late, was_interrupted)
        table = report.table(states)
        first = [headline, table, *failures.raised_words(_own_errors(raised))]
        if why:
            errors = _own_errors(raised) or why
            first = [*failures.raised_words(errors), headline, table]
        handled = failures.handled_words(raised)
        begun = report.begun_earlier(self.states)
        outcome = afterwards.words_of_freeing(duration, busy, replaced, ended.words())
        message = "\n".join([*first, *handled, *begun, outcome])
        if why:
            others = [one for one in raised if one not in why]
            not_finished = {*late, *(one.rank for one in raised)}
            finished = tuple(rank for rank in self.targets if rank not in not_finished)
            return RankError(message, (*why, *others), finished)
        return self._error_of_waiting(message, states, was_interrupted)

    def _rebuild(self) -> afterwards.EndedWithGroup:
        """Rebuild the group, and return what ended with the old one."""
        return self.ranks.rebuild()

    def _why_late(self, raised: list[Failure], late: list[int]) -> list[Failure]:
        """What ranks raised in time, which explains why others are late: report it, and no timeout.

        Empty where a deadlock does. Without a limit, nothing else has ended the cell: then also an
        error counts that a wait of its own gave to a rank.
        """
        if self.needs:
            return []
        in_time = [one for one in raised if one.rank not in late]
        if self.timeout is None:
            return _at_fault(in_time) or in_time
        return _at_fault(in_time)

    def _as_consequence(self, raised: Failure) -> Failure:
        """What a rank raised that was late: an interrupt that ended its wait was not its doing."""
        state = self.states.get(raised.rank)
        waited = state is not None and state.doing == COMMUNICATING
        if raised.kind in ENDED and waited:
            return replace(raised, consequence=True)
        return raised

    def _error_of_waiting(
        self, message: str, states: Mapping[int, RankStatus], was_interrupted: bool
    ) -> DeadlockError | RankTimeout | Interrupted:
        """The error for ranks that waited, by what ended their waits."""
        if self.needs:
            finished = tuple(rank for rank, state in states.items() if state.doing == IDLE)
            return DeadlockError(message, _failures_of_waiting(states), finished)
        if was_interrupted:
            return Interrupted(message)
        return RankTimeout(message, _failures_of_waiting(states))

    def _headline(self, late: list[int], was_interrupted: bool) -> str:
        """The first sentence of the error for ranks that were late."""
        if self.needs:
            return stuck.why_stuck(self.needs, self.states, self.targets)
        if was_interrupted:
            return afterwards.words_of_late(late, None)
        return afterwards.words_of_late(late, self.timeout)

    def _rank_error(self, raised: list[Failure]) -> RankError:
        """The error for what ranks raised, after rebuilding the group if it may be damaged."""
        cause = ""
        if not _at_fault(raised):
            cause = self._cause_elsewhere()
        made = self._groups_that_differ(raised)
        ended = afterwards.EndedWithGroup()
        rebuilt = self._may_have_damaged_group(raised)
        if rebuilt:
            ended = self._rebuild()
        if made:
            return self._groups_error(made, raised, ended)
        return failures.rank_error(raised, self.targets, rebuilt, ended.words(), cause)

    def _cause_elsewhere(self) -> str:
        """Why ranks failed of which none is at fault, in words; "" where that is not known."""
        cause = failures.words_of_destroyed(self.ranks.states(range(self.ranks.plan.n)))
        return cause or meanwhile.were_late(self.at_first_failure)

    def _may_have_damaged_group(self, raised: list[Failure]) -> bool:
        """Whether the failures may have left messages that nobody has received.

        The next cell's recv would take such a message. There is none if all ranks raised the same
        outside of communication.
        """
        n = self.ranks.plan.n
        if n == 1:
            return False
        if any(one.communicated for one in raised):
            return True
        kinds = {(one.kind, one.message, one.lines) for one in raised}
        return len(raised) < n or len(kinds) > 1

    def _groups_error(
        self, made: Mapping[int, NewGroup], raised: list[Failure], ended: afterwards.EndedWithGroup
    ) -> RankError:
        """The error for ranks that make different groups.

        Args:
            made: the groups that differ, by rank.
            raised: what the ranks raised.
            ended: what ended with the old group.
        """
        words = new_groups.words_of_groups(made)
        return failures.groups_error(words, made, raised, self.targets, ended)

    # --- what ranks raised ---

    def _raised(self) -> list[Failure]:
        """What the ranks that have replied raised.

        Those that have died are marked, and are not among them: for them, ipyparallel has replied.
        """
        dead = self.ranks.dead
        dead.wait_for_deaths(self.targets)
        replies: dict[int, Any] = {}
        for rank, reply in self.sent.so_far().items():
            if has_failed(reply) and rank not in dead.lost:
                replies[rank] = reply
        undescribed = [rank for rank, reply in replies.items() if isinstance(reply, Exception)]
        described = self._described(undescribed)
        raised = []
        for rank, reply in replies.items():
            raised.append(_failure_of_reply(rank, reply, described.get(rank)))
        nobody_died = self.lost_before.issuperset(dead.lost)
        if raised and not _at_fault(raised) and nobody_died:
            # the culprit may be a rank outside of the cell, which has served a remote call
            dead.wait_for_deaths(range(self.ranks.plan.n), seconds.DEATH)
        return raised

    def _described(self, ranks: Iterable[int]) -> dict[int, Any]:
        """What ranks say themselves that their last cell has raised, by rank, if they answer."""
        reached = set(ranks) & set(self.ranks.client.ids)  # one may have died since
        if not reached:
            return {}
        sent = self.ranks.send(reached, entry.last_failure)
        return sent.within(seconds.LAST_FAILURE)

    def _groups_that_differ(self, raised: list[Failure]) -> dict[int, NewGroup]:
        """The groups that the ranks make differently, by rank.

        Empty if any of them has raised for another reason.
        """
        culprits = _at_fault(raised)
        if not culprits:
            return {}
        for culprit in culprits:
            if not culprit.message.startswith(new_groups.DIFFERENT_GROUPS):
                return {}
        states = self.ranks.states(range(self.ranks.plan.n), patient=True)
        return new_groups.differing_groups({rank: state.made for rank, state in states.items()})

    # --- ranks that died ---

    def _died(self, replaced: Mapping[int, str]) -> dict[int, Ending]:
        """How ranks have died since the cell was sent, without those of `replaced`."""
        died = {}
        for rank, ending in self.ranks.lost.items():
            if rank not in self.lost_before and rank not in replaced:
                died[rank] = ending
        return died

    def _rank_died(
        self, died: Mapping[int, Ending], raised: list[Failure], replaced: Mapping[int, str]
    ) -> RankDied:
        """The error for ranks that have died in the cell.

        Args:
            died: how, by rank.
            raised: what the other ranks raised.
            replaced: what was lost with each rank that could not be freed.
        """
        ranks = self.ranks
        survivors = [rank for rank in range(ranks.plan.n) if rank not in ranks.lost]
        seen = self.states or ranks.states(survivors)
        had_rpc = any(seen[rank].threads for rank in survivors if rank in seen)
        sentences = afterwards.not_freed(replaced)
        sentences.append(afterwards.EndedWithGroup(rpc=had_rpc).words())
        dead = []
        for rank, ending in died.items():
            output = ranks.dead.last_lines.get(rank, "")
            dead.append(deaths.DeadRank(rank, ending, self._lines_of_dead(rank), output))
        return deaths.rank_died(
            dead,
            survivors,
            again=ranks.plan.again,
            host_lost=ranks.host_is_lost,
            gone=" ".join(sentences).rstrip(),
            then=self._when_they_died(died, raised),
        )

    def _lines_of_dead(self, rank: int) -> tuple[Line, ...]:
        """The learner's lines in which a rank has died, if a fault in compiled code ended it."""
        fault = self.ranks.dead.faults.get(rank)
        if fault is None:
            return ()
        pid = self.ranks.joined[rank].pid
        return deaths.lines_of_dead(fault.lines, pid, self.source)

    def _when_they_died(self, died: Mapping[int, Ending], raised: list[Failure]) -> list[str]:
        """What the other ranks of the cell did when these died, in lines, and how to learn more."""
        words = list(failures.raised_words(_own_errors(raised)))
        others = [rank for rank in self.targets if rank not in self.ranks.lost]
        states = meanwhile.at_that_time(others, self.at_first_failure, raised)
        is_mismatch = any(ending.may_be_mismatch for ending in died.values())
        if is_mismatch:
            states |= self._last_calls_like(died, states)
        if any(state.doing != IDLE for state in states.values()):
            plural = "s" if len(states) > 1 else ""
            words.append(f"What the other rank{plural} did last:")
            words.append(report.table(states))
        if is_mismatch:
            words += self._mismatch_words(died, states)
        return words

    def _last_calls_like(
        self, died: Mapping[int, Ending], states: Mapping[int, RankStatus]
    ) -> dict[int, RankStatus]:
        """The last calls of finished ranks that are of the functions in which others have died."""
        finished = [rank for rank, state in states.items() if state.doing == IDLE]
        if not finished:
            return {}
        asked = self.ranks.states(finished, patient=True)
        found: dict[int, RankStatus] = {}
        for op in self._ops_of_dead(died):
            found |= meanwhile.last_calls(op, asked)
        return found

    def _mismatch_words(
        self, died: Mapping[int, Ending], states: Mapping[int, RankStatus]
    ) -> Sequence[str]:
        """Which calls of living and dead ranks do not fit, in words, or how to find that out."""
        of_dead = {rank: state for rank, state in self.states.items() if rank in died}
        clash = meanwhile.clash_of({**states, **of_dead})
        if clash:
            return [clash]
        return failures.about_checks(bool(self._ops_of_dead(died)), self.is_checked)

    def _ops_of_dead(self, died: Mapping[int, Ending]) -> set[str]:
        """The functions of torch.distributed in which ranks have died, as far as that is known."""
        ops = set()
        for rank, fault in self.ranks.dead.faults.items():
            if rank in died and fault.op:
                ops.add(fault.op)
        return ops


def _at_fault(raised: list[Failure]) -> list[Failure]:
    """Failures that are a cause, and not the consequence of another rank's."""
    return [one for one in raised if not one.consequence]


def _own_errors(raised: list[Failure]) -> list[Failure]:
    """What ranks raised by themselves, and not because they were interrupted."""
    return [one for one in _at_fault(raised) if one.kind not in ENDED]


def _failures_of_waiting(states: Mapping[int, RankStatus]) -> tuple[Failure, ...]:
    """A failure for each rank that waits in communication, with its call and its lines."""
    found = []
    for rank, waiting in waiting_ranks(states).items():
        if waiting.state.doing == COMMUNICATING:
            words = report.call_words(waiting.call)
            found.append(
                readable.made_readable(Failure(rank, "Waiting", words, waiting.state.lines))
            )
    return tuple(found)


def _failure_of_reply(rank: int, reply: Any, described: Any) -> Failure:
    """What a rank raised.

    Args:
        rank: the rank.
        reply: its reply, of which `has_failed` is true.
        described: for a %%px cell, its own description, if there is one. It counts if it is of the
            same error; else what ipyparallel knows is all there is.
    """
    if not isinstance(reply, Exception):
        return readable.made_readable(reply[0].failure)
    if isinstance(described, Failure) and described.kind == getattr(reply, "ename", ""):
        return readable.made_readable(described)
    return of_ipyparallel(rank, reply)
