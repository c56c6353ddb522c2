"""The ranks of one cluster, as processes and as a group, from their start to their end.

Runs on the notebook's kernel, called by cluster.py; cell.py has ranks freed and the group rebuilt.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distlab import simulated
from distlab.compat.ipyparallel import Replies, engines_with_work
from distlab.diagnosis import afterwards, deaths
from distlab.diagnosis.endings import Ending
from distlab.diagnosis.proof import status_of
from distlab.errors import ClusterError
from distlab.notebook import interrupts, overview, paragraphs, seconds
from distlab.notebook.ahead import take_for_cluster
from distlab.notebook.dead_ranks import DeadRanks
from distlab.notebook.generation import join_all, wait_for_earlier_cells
from distlab.notebook.patience import Patience
from distlab.notebook.plan import Plan
from distlab.notebook.processes import Processes
from distlab.notebook.starting import start_processes
from distlab.notebook.troubles import Troubles
from distlab.rank import entry
from distlab.wire import messages
from distlab.wire.messages import RankStatus
from distlab.wire.rendezvous import Joined, this_machine

if TYPE_CHECKING:
    from distlab.notebook.preempting import Preemption
    from distlab.simulated.network import Network


class Ranks:
    """Processes that are ranks 0 to n - 1 of a group, once they have joined it; see `start`.

    Args:
        plan: how they were started.
        processes: with engines 0 to n - 1, or able to fork them.

    Attributes:
        plan: with the network that the ranks are on now.
        client: ipyparallel's Client.
        channel: to the watchdogs of the ranks.
        dead: which ranks of this generation have died.
        broken: whether the group must be rebuilt before use.
        joined: what each reported when it joined the group, its process number among it.
        stopped: whether the processes have been ended, or given away.
        preemption: the one that is under way; None if there is none.
    """

    def __init__(self, plan: Plan, processes: Processes):
        self.plan = plan
        self.client = processes.client
        self.channel = processes.channel
        self.joined: list[Joined] = []
        self.dead = DeadRanks(plan, processes, self.joined)
        self.broken = False
        self.stopped = False
        self.preemption: Preemption | None = None
        self._processes = processes
        self._cut = False  # whether connections were shut down since the group was built
        self._simulates = False  # whether the ranks are on simulated machines now
        self._troubles = Troubles()
        self._owner = os.getpid()

    @classmethod
    def start(cls, plan: Plan, warm: Processes | None = None) -> Ranks:
        """Start ranks that are a group when this returns; an error leaves none.

        Args:
            plan: how to start them.
            warm: processes of a cluster before, which are used if they can fork.
        """
        with overview.shown_start(plan.n, plan.backend):
            reused = warm or take_for_cluster(plan)
            if reused is not None:
                return cls.start_in(plan, reused)
            ranks = cls(plan, start_processes(plan))
            ranks._begin(are_there=True)
        return ranks

    @classmethod
    def start_in(cls, plan: Plan, processes: Processes) -> Ranks:
        """Like `start`, in processes that can fork; nothing is shown."""
        ranks = cls(plan, processes)
        ranks._begin(are_there=False)
        return ranks

    def _begin(self, are_there: bool) -> None:
        """Become a group; an error leaves no rank.

        Args:
            are_there: whether the engines run already.
        """
        everyone = list(range(self.plan.n))
        try:
            if not are_there:
                self._renew(everyone)
            self._build(everyone)
        except BaseException:
            self.end()
            raise

    @property
    def lost(self) -> dict[int, Ending]:
        """How ranks have died, by rank, as far as it is marked."""
        return self.dead.lost

    # --- the group ---

    def _renew(self, new: list[int]) -> None:
        """Start new processes for the ranks `new`.

        They are all ranks if the process that forks them has ended: all ended with it.
        """
        old = self._processes
        if old.can_fork:
            everyone = list(range(self.plan.n))
            old.replace(new, self.plan.threads, everyone, self.plan.fresh)
            return
        self._processes = start_processes(self.plan)
        self.dead.processes = self._processes
        self.client = self._processes.client
        self.channel = self._processes.channel
        old.stop()

    def _build(self, new: list[int], world: int | None = None) -> afterwards.EndedWithGroup:
        """Have ranks join a new generation of the group.

        Args:
            new: those whose processes are new.
            world: see `rebuild`.

        Returns:
            what ended with the old group.
        """
        everyone = list(range(world or self.plan.n))
        meeting = self._processes.next_meeting(self.plan, len(everyone))
        if self.plan.network is not None or self._simulates:
            self.client.direct_view("all").apply_async(simulated.use_network, self.plan.network)
            self._simulates = self.plan.network is not None
        whole = not self._cut and not new
        self.broken = True
        joins = {}
        for rank in everyone:
            is_new = rank in new
            joins[rank] = functools.partial(entry.join, rank, meeting, is_new, whole)
        try:
            joined = join_all(self.plan, self._processes, joins, is_first=new == everyone)
        except ClusterError:
            self._cut = True  # those that wait for the others were freed
            raise
        self.joined = [*joined, *self.joined[len(joined) :]]
        # besides accepting connections, this takes in what ranks have reported of the old group
        self.channel.meet(everyone, seconds.BUILD)
        threads = self.plan.threads or self._processes.threads
        self.plan = replace(self.plan, threads=threads)
        self.dead = DeadRanks(self.plan, self._processes, self.joined)
        self.broken = False
        self._cut = False
        self.channel.without_group = False
        return afterwards.EndedWithGroup(
            subgroups=any(one.subgroups for one in joined),
            rpc=any(one.rpc for one in joined),
        )

    def plan_on(self, network: Network | None) -> None:
        """Have the group be on simulated machines from its next rebuild; on real ones for None.

        It is rebuilt before the next cell, if not sooner.
        """
        self.plan = replace(self.plan, network=network)
        self.broken = True

    @interrupts.held()
    def rebuild(self, anew: bool = False, world: int | None = None) -> afterwards.EndedWithGroup:
        """Rebuild the group, with a new process for every rank that has died.

        The other ranks keep their variables. An interrupt ends only the wait for what ranks are
        still doing: if only some ranks were sent to the new meeting, they would wait for the
        others.

        Args:
            anew: whether to rebuild whole connections, too, so that RPC ends with them.
            world: how many ranks, from rank 0 on, are the whole world until the next rebuild; None
                for all. The others keep the group that they have, which is of no use to them.

        Returns:
            what ended with the old group.
        """
        self.mark_dead_ranks()
        self._cut |= anew
        wait_for_earlier_cells(self.client, self.lost)
        self.mark_dead_ranks()  # those that have died meanwhile
        if self.lost and not self.plan.forks:
            advice = self.plan.again[0].upper() + self.plan.again[1:]
            raise ClusterError(
                f"The cluster is incomplete: {deaths.died_words(self.lost)}. {advice}."
            )
        new = sorted(self.lost)
        if new:
            self._renew(new)
            if world is not None:  # a rank outside of that world becomes one here
                self._build(new)
                new = []
        return self._build(new, world)

    def ready(self, targets: Sequence[int]) -> None:
        """Before a cell: make sure that all ranks are there and that the group is whole.

        While a host is lost there is no group, but cells on the other ranks run.
        """
        there = min(len(self.client.ids), len(self.channel.ends))
        if self._processes.launcher.changed or there < self.plan.n:
            self.mark_dead_ranks()
        is_damaged = self.broken or bool(self.lost)
        if (is_damaged and self._is_worth_rebuilding(targets)) or self.channel.without_group:
            self.rebuild()

    def _is_worth_rebuilding(self, targets: Sequence[int]) -> bool:
        """Whether to rebuild a damaged group before a cell on these ranks.

        While a host is lost a rebuild waits for it, so it is left to a cell that needs its ranks.
        """
        if not self.host_is_lost:
            return True
        return not set(targets).isdisjoint(self.lost)

    @property
    def may_have_unmatched(self) -> bool:
        """Whether a rank has left operations behind that nobody waits for."""
        return self.channel.unwaited and not self.stopped

    # --- questions ---

    def send(self, ranks: Iterable[int], function: Callable[[], Any]) -> Replies:
        """Have some ranks call a function, once they have finished what they are doing."""
        targets = list(ranks)
        return Replies(self.client.direct_view(targets).apply_async(function), targets)

    def arguments_for_checks(self) -> tuple[str, str, int, float]:
        """Arguments for entry.begin_checks, new for every cell that is checked."""
        host, port = self._processes.store
        return f"checked/{time.time_ns()}", host, port, self.plan.timeout

    def states(self, ranks: Sequence[int], patient: bool = False) -> dict[int, RankStatus]:
        """What these ranks are doing, by rank.

        Args:
            ranks: those that are asked.
            patient: whether a rank that only waits for a CPU gets more time to answer.
        """
        with_work = engines_with_work(self.client)
        if patient:
            received = self.patience(ranks).ask(seconds.ANSWER_FOR_REPORT)
        else:
            received = self.channel.ask(ranks, seconds.ANSWER)
        unseen = {rank: answer.error for rank, answer in received.items() if answer.error}
        self._troubles.show(unseen, self.channel.troubles)
        return {rank: status_of(rank, received.get(rank), rank in with_work) for rank in ranks}

    def patience(self, ranks: Iterable[int]) -> Patience:
        """Patience with these ranks, from now on."""
        here = this_machine()
        pids: dict[int, int | None] = {}
        for rank in ranks:
            joined = self.joined[rank]
            pids[rank] = joined.pid if joined.machine == here else None
        return Patience(self.channel, pids)

    def printed(self) -> dict[int, str]:
        """What functions of remote calls have printed since the last time, by rank.

        The rank is the one that ran the function.
        """
        if self.stopped:
            return {}
        has_news = self.channel.arrivals.select(0) or self.channel.texts
        if not has_news:  # to read all connections would take long
            return {}
        return self.channel.printed()

    @property
    def hosts(self) -> list[str]:
        """Name of each rank's host, by rank; none where all are on this machine."""
        if self.stopped:
            return []
        names = self._processes.host_names
        return [names[host] for host in self._processes.host_of_rank]

    # --- orders ---

    def free(self, ranks: Iterable[int], want: str = messages.FREE_WAITING) -> None:
        """Have watchdogs end the waits of their ranks in communication.

        Args:
            ranks: those to free.
            want: FREE to end all that they send and receive, too.
        """
        self._cut = True
        self.channel.ask(ranks, 0, want)

    def kill(self, ranks: Sequence[int]) -> None:
        """Have the processes of these ranks ended; returns at once."""
        self._processes.servers.kill(ranks)

    def distrust_connections(self) -> None:
        """Have the next rebuild connect all ranks anew, because calls were cut short."""
        self.broken = True
        self._cut = True

    # --- ends ---

    def raise_if_unreachable(self) -> None:
        """While ranks are waited for: raise ClusterError if they cannot be reached."""
        if self.stopped:
            raise ClusterError(
                "The cluster was stopped before this cell had finished, so its results are lost."
            )
        self._processes.raise_if_controller_ended()

    def mark_dead_ranks(self) -> None:
        """Mark which ranks have died since the last look, and print which ones will be replaced.

        Nothing is sent, except that waits for them end.
        """
        self._processes.raise_if_controller_ended()
        # fork servers report each end, and nothing else does
        self._processes.launcher.changed = not self.plan.forks
        died = self.dead.mark_all()
        if not died:
            return
        # a cell that nobody is waiting for may be waiting for them
        self.free(engines_with_work(self.client) - set(self.lost))
        if self.plan.forks:
            news = f"Since the last cell, {deaths.died_words(died)}."
            paragraphs.say(f"{news} A new process starts without variables.", sys.stdout)

    @property
    def host_is_lost(self) -> bool:
        """Whether a rank has died with a host that cannot be reached any more.

        No new process takes its place then.
        """
        if not self.plan.forks or self.plan.hosts is None:
            return False
        return any(self._processes.servers.why_lost(rank) for rank in self.lost)

    def can_serve(self, plan: Plan) -> bool:
        """Whether the processes, without these ranks, are of use to a cluster with this plan."""
        return self._processes.can_serve(plan)

    def end(self, keep: bool = False) -> Processes | None:
        """End all processes.

        Does nothing the second time, or in a process that was forked from the notebook's.

        Args:
            keep: whether to return them instead, where they can be used for another cluster.
        """
        if self.stopped:
            return None
        self.stopped = True
        if os.getpid() != self._owner:
            return None
        if keep and self._processes.can_fork:
            return self._processes
        self._processes.stop()
        return None


def has_failed(reply: Any) -> bool:
    """Whether a rank raised or died, by its reply.

    For a %%px cell, or a rank that has died, ipyparallel has an exception; the reply to a call of
    entry.py starts with a Reply.
    """
    if isinstance(reply, Exception):
        return True
    return isinstance(reply, list) and reply[0].failure is not None
