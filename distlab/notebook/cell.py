"""One cell: sent to its ranks, waited for, freed if it cannot go on; its outcome is shown or
raised.

Runs on the notebook's kernel; called by cluster.py for `run`, `push` and `pull`, and by magics.py
for %%px.
"""

import contextlib
import linecache
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from distlab import arguments
from distlab.compat.ipyparallel import Replies
from distlab.compat.ipython import somebody_watches
from distlab.debugger import turns
from distlab.diagnosis import deaths, failures, meanwhile, new_groups, proof, report, stuck
from distlab.diagnosis.needs import Need
from distlab.errors import DeadlockError, Interrupted, RankTimeout
from distlab.notebook import display, freeing, interrupts, questions
from distlab.notebook.ranks import Ranks
from distlab.rank import entry
from distlab.simulated import begin_cell
from distlab.wire import seconds
from distlab.wire.messages import COMMUNICATING, IDLE, SILENT, Failure, NewGroup, RankStatus
from distlab.wire.source import Line

# what a rank that is interrupted raises, unless it fails in an except or finally
ENDED = "KeyboardInterrupt", "CancelledError", "BdbQuit"


@dataclass(frozen=True)
class Options:
    """How a cell is to run.

    Attributes:
        timeout: seconds before its ranks are freed; None waits without a limit.
        check: whether the ranks compare the arguments of their calls.
        quiet: it is one call of many and concerns its own ranks alone: neither the newest lines nor
            what was left unmatched are shown, and other ranks do not decide whether it can go on.
        source: the text of a %%px cell, its first line included; "" for a function.
        pauses: whether it may come to a breakpoint: then the groups' timeouts do not count.
        lines: of files that the ranks do not have, for the debugger.
        debug: whether a rank that raises opens the debugger.
    """

    timeout: float | None = None
    check: bool = False
    quiet: bool = False
    source: str = ""
    pauses: bool = False
    lines: Mapping[str, list[str]] = field(default_factory=dict)
    debug: bool = False


def may_pause(code: bytes) -> bool:
    """Whether a cell's text, or a packed function with all that it calls of the learner's, has a
    breakpoint().
    """
    return b"breakpoint" in code or b"set_trace" in code


def lines_of(function: Any) -> dict[str, list[str]]:
    """The source of the file, or the notebook's cell, that a function is in."""
    code = getattr(function, "__code__", None)
    return {code.co_filename: linecache.getlines(code.co_filename)} if code else {}


class Cell:
    """Code that runs on some ranks: sent when they are ready for it, waited for, shown and judged
    at its end.

    `run`, `push`, `pull` and %%px all come this way.

    Args:
        ranks: the ranks of the cluster.
        targets: those that run it.
        send: sends the code through an ipyparallel DirectView of them; returns its AsyncResult.
        options: how it is to run.
    """

    def __init__(
        self, ranks: Ranks, targets: list[int], send: Callable[[Any], Any], options: Options
    ):
        self._timeout = (
            None if options.timeout is None else arguments.seconds("timeout", options.timeout)
        )
        self._ranks, self._targets, self._options = ranks, targets, options
        ranks.ready(targets)
        self._lost_before = set(ranks.lost)
        self._end_of_checks: Replies | None = None
        view = ranks.client.direct_view(targets)
        if ranks.plan.network is not None:
            view.apply_async(begin_cell, time.monotonic_ns())
        with self._prepared(view):
            self._sent = Replies(send(view), targets)
        self._place, self._live = display.Place(), display.Live()
        self._memory = MemoryWatch(lambda: questions.memory(ranks, seconds.ANSWER))
        watched = targets if options.quiet else range(ranks.plan.n)
        self._watch = DeadlockWatch(lambda patient: ranks.states(watched, patient))
        self._began = time.monotonic()
        # with the debuggers of ranks that are at breakpoints
        self._turns: turns.Turns | None = None
        # what the ranks did when the first one had failed or died
        self._then: dict[int, RankStatus] = {}

    @contextlib.contextmanager
    def _prepared(self, view: Any) -> Iterator[None]:
        """What is sent inside this runs as the options say; afterwards ranks are as before, also if
        it cannot be sent.

        Args:
            view: ipyparallel's DirectView of the targets.
        """
        with contextlib.ExitStack() as afterwards:
            if self._options.check:
                afterwards.callback(self._end_checks, view)
                view.apply_async(entry.begin_checks, *self._ranks.checks())
            if self._options.pauses:
                afterwards.callback(
                    view.apply_async, entry.set_pauses, self._ranks.plan.timeout, False, {}
                )
                view.apply_async(
                    entry.set_pauses, seconds.PAUSE, self._options.debug, self._options.lines
                )
            yield

    def _end_checks(self, view: Any) -> None:
        self._end_of_checks = Replies(view.apply_async(entry.end_checks), self._targets)

    # --- waiting ---

    def finish(self) -> list[Any]:
        """Wait for the ranks, show what they wrote, and return their replies in the order of the
        targets.

        Raises:
            RankError, RankDied, DeadlockError, RankTimeout, Interrupted (a KeyboardInterrupt).
            ClusterError: the process that carries messages between notebook and ranks has ended.
        """
        try:
            self._wait()
            replies = self._replies()
            # it makes the calls that still wait for the other ranks
            if self._end_of_checks is not None:
                self._end_of_checks.within(seconds.LAST_FAILURE)
            self._ranks.rebuild_after_unmatched(not self._options.quiet)
            return replies
        finally:
            self._place.erase()

    def _wait(self) -> None:
        """Wait for the ranks; free them and raise when they cannot go on, take too long, or are
        interrupted.

        The callers hold interrupts back; here they are allowed where they do no harm.
        """
        timeout = self._timeout
        try:
            done = self._all_reply()
        except KeyboardInterrupt:
            done, timeout = False, None
        late, replaced = self._sent.unfinished(), {}
        if not done:
            if not self._watch.needs:
                self._watch.states = self._watch.ask(True)
            turns.leave(self._ranks.channel)
            # a rank that had just died never replies to what it was sent
            self._ranks.dead.wait_for_deaths(self._targets)
            replaced = freeing.bring_back(self._ranks, self._sent, self._watch.states)
        duration = time.monotonic() - self._began
        self._show()
        if not done:
            self._raise_late(late, replaced, timeout, duration)

    def _all_reply(self) -> bool:
        """Wait until every rank has replied; False if they take too long or cannot go on, or if one
        has died.
        """
        limit, duration = self._timeout or math.inf, 0.0
        while duration < limit:
            with interrupts.allowed():
                if self._sent.result.wait(min(seconds.TICK, limit - duration)):
                    return True
            self._ranks.check()
            self._ranks.channel.receive(0)
            while self._ranks.channel.asks:
                began = time.monotonic()
                self._turns = self._turns or turns.Turns(self._ranks.channel)
                self._turns.take()
                self._began += time.monotonic() - began
            duration = time.monotonic() - self._began
            if (died := self._ranks.dead.newly_dead()) or any(
                map(_has_failed, self._sent.so_far().values())
            ):
                self._then = self._then or self._watch.ask(False)
                self._ranks.free(self._sent.unfinished())
                limit = min(limit, duration + seconds.AFTER_DEATH) if died else limit
            elif duration < limit and self._watch.look():
                return False
            if not self._options.quiet and somebody_watches():
                self._show_live(duration)
        return False

    def _show_live(self, duration: float) -> None:
        """Show a person what the ranks are doing; the picture comes later than the words."""
        states, picture = self._watch.states, ""
        self._live.look(duration, states)
        if duration >= seconds.PICTURE_AFTER:
            picture = self._live.picture(duration, states, self._memory.look(duration))
        if duration >= seconds.LIVE_AFTER:
            doing = f"{duration:.0f} s: {report.brief(states)}"
            display.show_live(self._place, doing, picture, self._sent.result, self._targets)

    def _show(self) -> None:
        whole = not self._sent.unfinished() and set(self._targets) <= set(self._ranks.client.ids)
        limit = seconds.OUTPUT if whole else seconds.AFTER_DEATH
        with interrupts.allowed():
            display.show(
                self._sent.result, self._targets, self._place, limit, self._ranks.printed()
            )

    # --- the outcome ---

    def _replies(self) -> list[Any]:
        """The replies of a cell that has ended, in the targets' order; RankError or RankDied when a
        rank failed.
        """
        if any(map(_has_failed, self._sent.so_far().values())):
            raised = self._raised()
            self._raise_if_dead(raised)
            self._raise_failed(raised)
        return self._sent.result.get(return_exceptions=True)

    def _raised(self) -> list[Failure]:
        """What the ranks that have replied raised; for one that has died, which is noted,
        ipyparallel has replied.
        """
        self._ranks.dead.wait_for_deaths(self._targets)
        lost, replies = self._ranks.lost, self._sent.so_far()
        failed = [
            rank for rank, reply in replies.items() if _has_failed(reply) and rank not in lost
        ]
        exceptions = {rank for rank in failed if isinstance(replies[rank], Exception)}
        reached = exceptions & set(self._ranks.client.ids)  # one may have died since
        described = (
            self._ranks.send(reached, entry.last_failure).within(seconds.LAST_FAILURE)
            if reached
            else {}
        )
        raised = [_failure(rank, replies[rank], described.get(rank)) for rank in failed]
        if raised and all(f.consequence for f in raised) and self._lost_before.issuperset(lost):
            # of one that served a call, without a cell
            self._ranks.dead.wait_for_deaths(range(self._ranks.plan.n), seconds.DEATH)
        return raised

    def _raise_if_dead(
        self, raised: list[Failure], replaced: Mapping[int, str] | None = None
    ) -> None:
        """Raise RankDied if a process has ended since the cell was sent, by itself and not as one
        of `replaced`.
        """
        lost, replaced = self._ranks.lost, replaced or {}
        died = {
            rank: how for rank, how in lost.items() if rank not in {*self._lost_before, *replaced}
        }
        if not died:
            return
        survivors = [rank for rank in range(self._ranks.plan.n) if rank not in lost]
        how = self._ranks.plan.again, self._ranks.host_is_lost, self._ranks.dead.last_lines
        seen = self._watch.states or self._ranks.states(survivors)
        ended = failures.gone_with_group(
            False, any(seen[rank].threads for rank in survivors if rank in seen)
        )
        gone = " ".join([*failures.not_freed(replaced), ended]).rstrip()
        lines = {rank: self._lines_of_dead(rank) for rank in died}
        raise deaths.rank_died(
            died, survivors, *how, gone, lines, self._when_they_died(died, raised)
        )

    def _lines_of_dead(self, rank: int) -> tuple[Line, ...]:
        """The learner's lines in which a rank has died, if a fault in compiled code ended it."""
        fault, pid = self._ranks.dead.faults.get(rank), self._ranks.joined[rank].pid
        return deaths.lines_of_dead(fault.lines, pid, self._options.source) if fault else ()

    def _when_they_died(self, died: Mapping[int, str], raised: list[Failure]) -> list[str]:
        """What the other ranks of the cell did when these died, in words, and what to do to learn
        more.
        """
        words = [
            *failures.raised_words([f for f in raised if not f.consequence and f.kind not in ENDED])
        ]
        others = [rank for rank in self._targets if rank not in self._ranks.lost]
        states = meanwhile.at_that_time(others, self._then, raised)
        is_mismatch = any(map(deaths.is_mismatch, died.values()))
        if is_mismatch:
            finished = [rank for rank, state in states.items() if state.doing == IDLE]
            asked = self._ranks.states(finished, patient=True) if finished else {}
            ops = {fault.op for rank, fault in self._ranks.dead.faults.items() if rank in died} - {
                ""
            }
            for op in ops:
                states |= meanwhile.last_calls(op, asked)
        if any(state.doing != IDLE for state in states.values()):
            words += [
                f"What the other rank{'s' if len(states) > 1 else ''} did last:",
                report.table(states),
            ]
        if is_mismatch:
            known = {rank: state for rank, state in self._watch.states.items() if rank in died}
            if clash := meanwhile.clash_of(states | known):
                words.append(clash)
            else:
                words += failures.about_checks(bool(ops), self._options.check)
        return words

    def _groups_that_differ(self, raised: list[Failure]) -> dict[int, NewGroup]:
        """The groups that the ranks make differently, by rank, if that is all that any of them
        raised for.
        """
        culprits = [failure for failure in raised if not failure.consequence]
        if not culprits or not all(
            f.message.startswith(new_groups.DIFFERENT_GROUPS) for f in culprits
        ):
            return {}
        states = self._ranks.states(range(self._ranks.plan.n), patient=True)
        return new_groups.differing_groups({rank: state.made for rank, state in states.items()})

    def _raise_failed(self, raised: list[Failure]) -> None:
        """Raise RankError, after rebuilding the group if it may be damaged."""
        n = self._ranks.plan.n
        alike = len(raised) == n and len({(f.kind, f.message, f.lines) for f in raised}) == 1
        rebuilt, gone, cause = False, "", ""
        if all(failure.consequence for failure in raised):
            cause = failures.destroyed(self._ranks.states(range(n))) or meanwhile.were_late(
                self._then
            )
        made = self._groups_that_differ(raised)
        if n > 1 and (not alike or any(f.communicated for f in raised)):
            # a message that one rank sent and no rank received would be taken by the next cell's
            # recv
            rebuilt, gone = True, self._ranks.rebuild()
        if made:
            raise failures.groups_error(
                new_groups.words_of_groups(made), made, raised, self._targets, gone
            )
        raise failures.rank_error(raised, self._targets, rebuilt, gone, cause)

    def _raise_late(
        self, late: list[int], replaced: dict[int, str], timeout: float | None, duration: float
    ) -> None:
        """Raise for ranks that were freed or replaced, or could not be.

        Args:
            late: the ranks that had not replied.
            replaced: what was lost with each rank that could not be freed.
            timeout: None when a person interrupted.
            duration: seconds that the cell ran until its ranks were free.
        """
        everyone, needs = self._watch.states, self._watch.needs
        raised, busy = self._raised(), sorted({*self._sent.unfinished()} - {*self._ranks.lost})
        self._raise_if_dead(raised, replaced)
        made = self._groups_that_differ(raised)
        gone = "" if busy else self._ranks.rebuild()
        in_time = [f for f in raised if f.rank not in late and not f.consequence]
        # it is at fault for those that are late
        if in_time and timeout is not None and not busy and not replaced:
            if made:
                raise failures.groups_error(
                    new_groups.words_of_groups(made), made, raised, self._targets, gone
                )
            raise failures.rank_error(raised, self._targets, True, gone)
        states = {rank: state for rank, state in everyone.items() if rank in self._targets}
        waits = [state for state in states.values() if state.doing == COMMUNICATING]
        found = tuple(
            failures.failure(Failure(s.rank, "Waiting", report.call_words(s.call), s.lines))
            for s in waits
        )
        first = (
            stuck.why_stuck(needs, everyone, self._targets)
            if needs
            else failures.late(late, timeout)
        )
        own = [f for f in raised if not f.consequence and f.kind not in ENDED]
        parts = [
            first,
            report.table(states),
            *failures.raised_words(own),
            *failures.handled_words(raised),
        ]
        parts += report.begun_earlier(everyone)
        message = "\n".join([*parts, failures.outcome(duration, busy, replaced, gone)])
        display.show_source(states, self._options.source)
        if needs:
            raise DeadlockError(
                message, found, tuple(r for r, state in states.items() if state.doing == IDLE)
            )
        raise Interrupted(message) if timeout is None else RankTimeout(message, found)


class DeadlockWatch:
    """What the ranks of a cluster were doing at the last look, and since when nothing has moved.

    Args:
        ask: returns what the ranks are doing; its argument: whether a rank that only waits for a
            CPU gets more time.

    Attributes:
        states: by rank, from the last look.
        needs: why no rank can go on; empty until it is proven.
    """

    def __init__(self, ask: Callable[[bool], dict[int, RankStatus]]):
        self.ask, self._since = ask, time.monotonic()
        self.states: dict[int, RankStatus] = {}
        self.needs: dict[int, Need] = {}

    def look(self) -> bool:
        """Ask every rank; True if there is a deadlock and nothing has moved since it was first
        seen.
        """
        before, began = self.states, time.monotonic()
        self.states = self.ask(any(state.doing == SILENT for state in before.values()))
        needs = proof.proof(self.states)
        if needs is None or not proof.unmoved(before, self.states):
            self._since = began
        elif time.monotonic() - self._since >= seconds.UNMOVED:
            self.needs = needs
        return bool(self.needs)


class MemoryWatch:
    """The memory of a cell's ranks, looked at rarely: a process takes long to add up the pages that
    it shares.

    Args:
        ask: returns megabytes by rank, of the ranks that answer.
    """

    def __init__(self, ask: Callable[[], dict[int, float]]):
        self._ask = ask
        self._asked = -math.inf
        self._megabytes: dict[int, float] = {}

    def look(self, now: float) -> dict[int, float]:
        """Megabytes by rank, as they were at the last look; of a rank that did not answer, at an
        earlier one.
        """
        if now - self._asked >= seconds.MEMORY_AGAIN:
            self._asked = now
            self._megabytes |= self._ask()
        return self._megabytes


def _failure(rank: int, reply: Any, described: Any) -> Failure:
    """What a rank raised: its own description, for a %%px cell `described`, else what ipyparallel
    knows about it.
    """
    if not isinstance(reply, Exception):
        return failures.failure(reply[0].failure)
    if isinstance(described, Failure) and described.kind == getattr(reply, "ename", ""):
        return failures.failure(described)
    return Failure(
        rank, getattr(reply, "ename", type(reply).__name__), getattr(reply, "evalue", str(reply))
    )


def _has_failed(reply: Any) -> bool:
    """Whether a rank raised: for a %%px cell ipyparallel has an exception, a call of entry.py
    starts with a Reply.
    """
    return isinstance(reply, Exception) or (
        isinstance(reply, list) and reply[0].failure is not None
    )
