"""`Cluster.preempt`: ranks get SIGTERM, and SIGKILL if they are still there after a grace time.

Runs on the notebook's kernel or in the process of `distlab run`, called by cluster.py and by
scripts/preempting.py; cell.py has it look while a cell runs. rank/preempting.py sends the signals
and reports what follows, and diagnosis/preempted.py says it in words.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.arguments import refuse, seconds, whole_number
from distlab.compat.ipyparallel import Replies
from distlab.diagnosis import meanwhile, preempted
from distlab.diagnosis.preempted import EndOfRank, PreemptionRecord, RankPreempted, SavedFile
from distlab.errors import ClusterError
from distlab.notebook.gathering import gather
from distlab.notebook.paragraphs import as_paragraphs
from distlab.notebook.ranks import Ranks, has_failed
from distlab.notebook.saved_files import saved_files
from distlab.rank import entry
from distlab.wire import messages
from distlab.wire.messages import Moment, RankStatus
from distlab.wire.preemption import GRACE, Order, first_line

if TYPE_CHECKING:
    from distlab.notebook.cluster import Cluster

EVERYONE = "all"
EXAMPLE = "For example: cluster.preempt(1, step=20, grace=5)."


def order_of(rank: int | str, after: float | None, step: int | None, n: int) -> Order:
    """The order that a person asks for.

    Raises:
        ArgumentError: an argument breaks its rule, or not exactly one of after and step is given.
    """
    if isinstance(rank, str):
        if rank != EVERYONE:
            refuse("rank", 'a rank or "all"', rank, EXAMPLE)
        ranks = tuple(range(n))
    else:
        ranks = (whole_number("rank", rank, 0, n - 1, EXAMPLE),)
    if (after is None) == (step is None):
        given = "both" if step is not None else "neither"
        refuse("after or step", "given, one of them", given, EXAMPLE)
    if after is not None:
        after = seconds("after", after)
    if step is not None:
        whole_number("step", step, 1, advice=EXAMPLE)
    return Order(ranks, after, step, whole_group=rank == EVERYONE)


class Preemption:
    """A preemption that is under way, and what has happened: print it, or read its `report`.

    Args:
        ranks: of the cluster.
        orders: which ranks get SIGTERM, and when.
        grace: seconds until SIGKILL.

    Attributes:
        record: what happened, as data.
    """

    def __init__(self, ranks: Ranks, orders: Sequence[Order], grace: float):
        self._ranks = ranks
        self._orders = list(orders)
        self._grace = grace
        self._began = 0.0  # when the first cell began, in seconds of this machine's clock
        self._signals: dict[int, Moment] = {}
        self._moments: list[tuple[int, Moment]] = []
        self._ended: dict[int, float] = {}  # when ranks have replied
        self._killed: dict[int, RankStatus | None] = {}
        self._doing: dict[int, RankStatus] = {}
        self._steps: dict[int, int] = {}
        self._is_over = False  # whether the cell in which the signal came has ended
        self.record = self._make_record({}, {})

    # --- while a cell runs ---

    def begin_cell(self, sent: Replies) -> None:
        """Note that a cell was sent: seconds are counted from the first one."""
        if self._is_over:
            return
        self._began = self._began or time.time()
        self._ended = {}
        for rank, future in sent.futures.items():
            future.add_done_callback(functools.partial(self._note_end, rank))

    def _note_end(self, rank: int, _: Any) -> None:
        self._ended.setdefault(rank, time.time())

    def look(self, sent: Replies, states: Mapping[int, RankStatus]) -> None:
        """Send the signals that are due, and end ranks whose grace time is over.

        Args:
            sent: the replies of the cell that runs.
            states: what ranks did at the last look.
        """
        self._take_moments()
        busy = set(sent.unfinished()) - set(self._ranks.lost)
        for order in self._orders:
            is_due = order.after is not None and time.time() - self._began >= order.after
            waiting = busy & set(order.ranks) - set(self._signals)
            if is_due and waiting:  # again until they report it: a rank sends it once
                self._ranks.channel.ask(waiting, 0, messages.PREEMPT)
        if self._signals and busy & set(self._signals):
            self._doing = dict(states)
        for rank in sorted(busy & set(self._signals) - set(self._killed)):
            if time.time() - self._signals[rank].clock >= self._grace:
                self._killed[rank] = states.get(rank)
                self._ranks.kill([rank])

    def end_cell(self, sent: Replies, states: Mapping[int, RankStatus]) -> None:
        """Record how the ranks have ended the cell.

        Args:
            sent: their replies.
            states: what they did when the first one had failed; empty if none has.
        """
        if self._is_over:
            return
        self._take_moments()
        self._is_over = bool(self._signals)
        doing = dict(self._doing)
        for rank, state in states.items():
            if state.doing in (messages.COMMUNICATING, messages.COMPUTING):
                doing[rank] = state
        self.record = self._make_record(sent.so_far(), doing)

    def _take_moments(self) -> None:
        """Take in what ranks have reported."""
        channel = self._ranks.channel
        channel.receive(0)
        arrived = channel.moments
        channel.moments = []
        for rank, moment in arrived:
            self._moments.append((rank, moment))
            if moment.what == messages.SIGNAL_CAME:
                self._signals.setdefault(rank, moment)

    # --- the record ---

    def finish(self, steps: Mapping[int, int]) -> None:
        """Take in how many steps the ranks have finished, as they say at the end."""
        self._steps = dict(steps)
        self._take_moments()
        preempted_ranks = []
        for one in self.record.preempted:
            preempted_ranks.append(self._with_moments(one))
        self.record = PreemptionRecord(
            tuple(preempted_ranks), self.record.others, self.record.doing, self._saves()
        )

    def _make_record(
        self, replies: Mapping[int, Any], doing: Mapping[int, RankStatus]
    ) -> PreemptionRecord:
        """What happened, as far as it is known."""
        found = []
        targets = set()
        for order in self._orders:
            for rank in order.ranks:
                if rank not in targets:
                    targets.add(rank)
                    one = RankPreempted(
                        rank, _when(order), self._grace, self._end_of(rank, replies.get(rank))
                    )
                    found.append(self._with_moments(one))
        others = {}
        for rank in range(self._ranks.plan.n):
            if rank not in targets:
                others[rank] = self._end_of(rank, replies.get(rank))
        raised = [end.failure for end in others.values() if end.failure is not None]
        doing = meanwhile.at_that_time(list(others), doing, raised)
        found.sort(key=lambda one: one.rank)
        return PreemptionRecord(tuple(found), others, doing, self._saves())

    def _with_moments(self, one: RankPreempted) -> RankPreempted:
        """What is known of a preempted rank, with what it has reported."""
        signal = self._signals.get(one.rank)
        return RankPreempted(
            rank=one.rank,
            when=one.when,
            grace=one.grace,
            end=one.end,
            signal=signal,
            after_begin=signal.clock - self._began if signal else 0.0,
            began=self._first(one.rank, messages.HANDLER_BEGAN),
            returned=self._first(one.rank, messages.HANDLER_ENDED),
            killed=one.rank in self._killed,
            at_kill=self._killed.get(one.rank),
            steps=self._steps.get(one.rank),
        )

    def _first(self, rank: int, what: str) -> Moment | None:
        """The first moment of a kind that a rank has reported."""
        for of_rank, moment in self._moments:
            if of_rank == rank and moment.what == what:
                return moment
        return None

    def _first_signal(self) -> float:
        """When the first signal came."""
        return min((moment.clock for moment in self._signals.values()), default=time.time())

    def _end_of(self, rank: int, reply: Any) -> EndOfRank:
        """How a rank ended the cell, by its reply; None for no reply."""
        after = self._ended.get(rank, time.time()) - self._first_signal()
        dead = self._ranks.dead
        if rank in dead.newly_dead():
            dead.mark_dead(rank)
        if rank in self._ranks.lost:
            return EndOfRank(preempted.DIED, after, self._ranks.lost[rank].words())
        if reply is None:
            return EndOfRank()
        if not has_failed(reply):
            return EndOfRank(preempted.RETURNED, after)
        if isinstance(reply, Exception):  # of a %%px cell
            words = first_line(
                getattr(reply, "ename", type(reply).__name__), getattr(reply, "evalue", "")
            )
            return EndOfRank(preempted.RAISED, after, words)
        failure = reply[0].failure
        if failure.consequence:
            return EndOfRank(preempted.WAITED, after, failure=failure)
        words = first_line(failure.kind, failure.message)
        return EndOfRank(preempted.RAISED, after, words, failure)

    def _saves(self) -> tuple[tuple[SavedFile, tuple[int, ...]], ...]:
        """What was saved after the first signal."""
        if not self._signals:
            return ()
        return saved_files(self._moments, self._first_signal(), self._ranks.plan.n)

    # --- for a person ---

    @property
    def all_sent(self) -> bool:
        """Whether each rank that was to get the signal has got it."""
        return all(one.signal is not None for one in self.record.preempted)

    @property
    def report(self) -> str:
        """What happened, in words."""
        return preempted.words_of_preemption(self.record)

    def __repr__(self) -> str:
        return self.report

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.report, "text/html": as_paragraphs(self.report)}


@contextlib.contextmanager
def preempting(
    cluster: Cluster, orders: Sequence[Order], grace: float = GRACE
) -> Iterator[Preemption]:
    """Have ranks preempted in the cells that run in the block.

    Raises:
        ClusterError: the ranks were not forked, are being preempted already, or cannot prepare.
    """
    ranks = cluster.ranks
    everyone = list(range(ranks.plan.n))
    if not ranks.plan.forks:
        raise ClusterError("Only forked ranks can be preempted. Call distlab.Cluster(n).")
    if ranks.preemption is not None:
        raise ClusterError("These ranks are already being preempted. Leave that with block first.")
    ranks.ready(everyone)
    begin = functools.partial(entry.begin_preemption, tuple(orders))
    _, missing = gather(ranks, everyone, begin)
    for rank, why in missing.items():
        raise ClusterError(f"rank {rank} cannot be preempted: {why}.")
    ranks.channel.moments = []
    found = Preemption(ranks, orders, seconds("grace", grace))
    ranks.preemption = found
    try:
        yield found
    finally:
        ranks.preemption = None
        steps, _ = gather(ranks, everyone, entry.end_preemption)
        found.finish(steps)


def _when(order: Order) -> str:
    """When an order is to be carried out, in words."""
    if order.step is not None:
        return f"asked for at the end of its optimizer step {order.step}"
    return f"asked for after {order.after:g} s"
