"""The ranks of one cluster as processes and as a group: started, joined, asked, freed, replaced,
ended.

Runs on the notebook's kernel, called by cluster.py; cell.py asks it to free ranks and to rebuild
the group.
"""

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import replace
from typing import Any

from distlab import simulated
from distlab.compat.ipyparallel import Replies, engines_with_work
from distlab.diagnosis import deaths, failures, joining, report
from distlab.diagnosis.proof import status_of
from distlab.errors import ClusterError
from distlab.notebook import display, interrupts
from distlab.notebook.ahead import started, take
from distlab.notebook.patience import Patience
from distlab.notebook.plan import Plan
from distlab.notebook.processes import Processes
from distlab.notebook.start_methods import Mpi
from distlab.rank import entry
from distlab.wire import messages, pickling, seconds
from distlab.wire.faults import Fault
from distlab.wire.messages import Failure, RankStatus
from distlab.wire.rendezvous import Joined, this_machine
from distlab.words import rank_list


class Ranks:
    """Processes that are ranks 0 to n - 1 of a group; they run when the constructor returns; an
    error leaves none.

    Attributes:
        plan: how they were started, with the network that they are on now.
        client: ipyparallel's Client.
        channel: to the watchdogs of the ranks.
        lost: how ranks have died, in words, by rank.
        last_lines: the end of what they wrote, by rank.
        faults: where they were when a fault in compiled code ended them, by rank.
        broken: whether the group must be rebuilt before use.
        joined: what each reported when it joined the group, its process number among it.
    """

    def __init__(self, plan: Plan, warm: Processes | None = None):
        self.plan = plan
        self.lost: dict[int, str] = {}
        self.last_lines: dict[int, str] = {}
        self.faults: dict[int, Fault] = {}
        self.broken = False
        self.joined: list[Joined] = []
        # whether connections between ranks were shut down since the group was built
        self._cut = False
        self._simulates = False  # whether the ranks are on simulated machines now
        self._trouble_shown = False  # whether it was said that a watchdog has failed
        self._owner = os.getpid()
        with display.starting(plan.n, plan.backend):
            self._processes: Processes | None = warm or take(plan)
            try:
                self._build(list(range(plan.n)))
            except BaseException:
                self.end()
                raise

    def _build(self, new: list[int], gives_way: bool = False) -> str:
        """Build the group, with new processes for the ranks `new`; what ended with an old group, in
        sentences.
        """
        plan, old, everyone = self.plan, self._processes, list(range(self.plan.n))
        if new and old is not None and old.can_fork:
            old.replace(new, plan.threads or old.threads, everyone)
        elif new:  # all of them: the first time, or because they all ended with the process that forks them
            self._processes = started(plan)
            if old is not None:
                old.stop()
        self.client, self.channel = self._processes.client, self._processes.channel
        meeting = self._processes.next_meeting(plan)
        if plan.network is not None or self._simulates:
            self.client.direct_view("all").apply_async(simulated.use, plan.network)
            self._simulates = plan.network is not None
        whole = not self._cut and not new
        self.broken = True
        is_first = new == everyone
        joining: dict[int, futures.Future] = {}
        for rank in everyone:
            join = functools.partial(entry.join, rank, meeting, rank in new, whole, gives_way)
            try:
                joining |= self.send([rank], join).futures
            except IndexError as error:  # ipyparallel's: the rank has just ended
                raise self._not_built([self._join_failure(rank, error)], [], is_first) from error
        self.joined = self._all_joined(joining, is_first)
        # which also hears what the ranks have said of the old group
        self.channel.meet(everyone, seconds.BUILD)
        self.plan = replace(plan, threads=plan.threads or self._processes.threads)
        self.lost, self.broken, self._cut = {}, False, False
        self.channel.without_group = False
        return failures.gone_with_group(
            any(one.subgroups for one in self.joined), any(one.rpc for one in self.joined)
        )

    def _all_joined(self, joining: Mapping[int, futures.Future], is_first: bool) -> list[Joined]:
        """What the ranks report that join a group, by rank.

        Args:
            joining: what they will reply, by rank.
            is_first: whether the cluster starts.

        Raises:
            ClusterError: a rank failed, which is the first to do so; or none joins for a while.
        """
        joined: dict[int, Joined] = {}
        failed: list[Failure] = []  # in the order of time
        # ranks wait for each other, then connect, and say themselves that this took too long
        patience = seconds.BUILD + self._connecting() + seconds.AFTER_DEATH
        pending = set(joining)
        while pending:
            # one that only waited for others may lose its connections before the reply of the
            # culprit is here
            limit = seconds.AFTER_DEATH if failed else patience
            some, _ = futures.wait(
                [joining[rank] for rank in pending], limit, futures.FIRST_COMPLETED
            )
            arrived = [rank for rank in sorted(pending) if joining[rank] in some]
            pending -= set(arrived)
            replies = {
                rank: joining[rank].exception() or joining[rank].result() for rank in arrived
            }
            joined |= {rank: reply for rank, reply in replies.items() if isinstance(reply, Joined)}
            failed += [
                self._join_failure(rank, reply)
                for rank, reply in replies.items()
                if rank not in joined
            ]
            if not arrived or any(not joining.waited_to_join(one) for one in failed):
                break
        if len(joined) == len(joining):
            return [joined[rank] for rank in sorted(joined)]
        self.free(pending, messages.FREE)
        raise self._not_built(failed, sorted(pending), is_first)

    def _not_built(self, failed: list[Failure], missing: list[int], is_first: bool) -> ClusterError:
        return ClusterError(
            joining.not_built(failed, missing, seconds.BUILD, self._connecting(), is_first)
        )

    def _connecting(self) -> float:
        """Seconds that ranks have to connect when all of them are there: those of a call, at most
        BUILD.
        """
        return min(self.plan.timeout, seconds.BUILD)

    def _join_failure(self, rank: int, reply: Any) -> Failure:
        """Why a rank could not join: as it has described it, or how it has ended, or what
        ipyparallel knows.
        """
        if isinstance(reply, Failure):
            return failures.failure(reply)
        pid = self._processes.servers.pids.get(rank)
        how = "" if pid is None else self._processes.exit_reason(rank, pid)
        if not how and rank not in self.client.ids:
            how = deaths.exit_words(None)
        if how:
            return Failure(rank, deaths.DIED, how)
        return Failure(
            rank,
            getattr(reply, "ename", type(reply).__name__),
            getattr(reply, "evalue", str(reply)),
        )

    @interrupts.held()
    def rebuild(self, anew: bool = False, gives_way: bool = False) -> str:
        """Rebuild the group, with a new process for every rank that has died; the others keep their
        variables.

        An interrupt ends only the wait for what ranks are still doing: if only some ranks were sent
        to the new meeting, they would wait for the others.

        Args:
            anew: whether to rebuild whole connections, too, so that RPC ends with them.
            gives_way: whether the new group gives way to one that the learner's code makes.

        Returns:
            what ended with the old group, in sentences.
        """
        self.mark_dead_ranks()
        self._cut |= anew
        deadline = time.monotonic() + seconds.BUILD
        # with what they were sent before
        while busy := engines_with_work(self.client) - set(self.lost):
            if time.monotonic() > deadline:
                words = f"an earlier cell is still running on {rank_list([*busy])} after {seconds.BUILD:g} s"
                raise ClusterError(
                    f"The process group cannot be rebuilt: {words}. Call cluster.interrupt() first."
                )
            with interrupts.allowed():
                time.sleep(0.002)
        if self.lost and not self.plan.forks:
            advice = self.plan.again[0].upper() + self.plan.again[1:]
            raise ClusterError(
                f"The cluster is incomplete: {deaths.died_words(self.lost)}. {advice}."
            )
        return self._build(sorted(self.lost), gives_way)

    def ready(self, targets: Sequence[int]) -> None:
        """Before a cell: make sure that all ranks are there and the group is whole; no group while
        a host is lost.
        """
        if (
            self._processes.launcher.changed
            or min(len(self.client.ids), len(self.channel.ends)) < self.plan.n
        ):
            self.mark_dead_ranks()
        if self.broken and (set(targets) & set(self.lost) or not self.host_is_lost):
            self.rebuild()
        elif self.channel.without_group:  # the cell before has destroyed it
            self.rebuild(gives_way=True)

    def checks(self) -> tuple[str, str, int, float]:
        """Arguments for entry.begin_checks, new for every cell that is checked."""
        return (f"checked/{time.time_ns()}", *self._processes.store, self.plan.timeout)

    def send(self, ranks: Iterable[int], function: Callable[[], Any]) -> Replies:
        """Have some ranks call a function, once they have finished what they are doing."""
        targets = list(ranks)
        return Replies(self.client.direct_view(targets).apply_async(function), targets)

    def states(self, ranks: Sequence[int], patient: bool = False) -> dict[int, RankStatus]:
        """What these ranks are doing; with `patient`, one that only waits for a CPU gets more time
        to answer.
        """
        with_work = engines_with_work(self.client)
        received = (
            self.patience(ranks).ask(seconds.ANSWER_FOR_REPORT)
            if patient
            else self.channel.ask(ranks)
        )
        self._show_troubles(
            {rank: answer.error for rank, answer in received.items() if answer.error}
        )
        return {rank: status_of(rank, received.get(rank), rank in with_work) for rank in ranks}

    def _show_troubles(self, unseen: Mapping[int, str]) -> None:
        """Show once, in a line, that something goes wrong on a watchdog.

        Args:
            unseen: why some ranks could not say what they are doing, by rank.
        """
        troubles = unseen or self.channel.troubles
        if not troubles or self._trouble_shown:
            return
        self._trouble_shown = True
        rank, error = next(iter(troubles.items()))
        words = f"distlab has met an error of its own on rank {rank}"
        if unseen:
            words = f"distlab cannot see what rank {rank} is doing, so it finds no deadlocks"
        display.say(f"{words}: {error}", sys.stderr)

    def patience(self, ranks: Iterable[int]) -> Patience:
        """Patience with these ranks, from now on."""
        joined, here = self.joined, this_machine()
        pids = {rank: joined[rank].pid if joined[rank].machine == here else None for rank in ranks}
        return Patience(self.channel, pids)

    def printed(self) -> dict[int, str]:
        """What functions of remote calls have printed since this was last asked, by the rank that
        ran them.
        """
        if self.stopped:
            return {}
        arrived = self.channel.arrivals.select(0)
        return self.channel.printed() if arrived or self.channel.texts else {}

    def rebuild_after_unmatched(self, print_report: bool) -> None:
        """After a cell: report operations that nothing can match any more, and build a new group
        without them.
        """
        if self.stopped or not self.channel.unwaited:
            return
        self.channel.unwaited = False
        states = self.states(range(self.plan.n), patient=True)
        if left := report.left(states):
            # virtual time goes on, and an operation that a rank may still wait for has to end
            may_wait = any(state.pending or state.more_unwaited for state in states.values())
            stays = self.plan.network is not None or may_wait
            gone = "" if stays else self.rebuild()
            if print_report:
                display.say(report.words_of_left(left, stays, gone), sys.stderr)

    def describe(self) -> list[dict[str, Any]]:
        """Number, process id, state in words and memory in megabytes of each rank, as
        `Cluster.describe` has them.
        """
        lost = self.lost | {rank: self._exit_reason(rank) for rank in self.newly_dead()}
        there = [rank for rank in range(self.plan.n) if rank not in lost]
        does = {
            rank: report.activity(status)
            for rank, status in self.states(there, patient=True).items()
        } | lost
        memory = self.memory(seconds.ANSWER_FOR_REPORT)
        rows = []
        for rank, one in enumerate(self.joined):
            host = {"host": self.hosts[rank]} if self.hosts else {}
            rows.append(
                {
                    "rank": rank,
                    "pid": one.pid,
                    "state": does[rank],
                    "megabytes": memory.get(rank),
                    **host,
                }
            )
        return rows

    def names(self, rank: int) -> tuple[str, ...]:
        """The names that cells can use on a rank, also while it is busy: its watchdog answers. None
        if it does not.
        """
        answer = self.channel.ask([rank], seconds.ANSWER, messages.NAMES).get(rank)
        return () if answer is None or answer.variables is None else answer.variables

    def peek(self, rank: int, packed: Sequence[Any], limit: float) -> Any:
        """What a function returns on a rank that has nothing else to do; None if it has, or does
        not answer in time.

        A question for a person's convenience: nothing is waited for, interrupted, freed or rebuilt
        for it.

        Args:
            packed: the arguments of entry.call.
            limit: seconds.
        """
        gone = rank in self.lost or rank in self.newly_dead()
        if gone or self.states([rank])[rank].doing != messages.IDLE:
            return None
        view = self.client.direct_view([rank])
        reply = Replies(view.apply_async(entry.call, *packed), [rank]).within(limit).get(rank)
        if not isinstance(reply, list) or reply[0].failure is not None or reply[0].unsendable:
            return None
        return pickling.unpack([reply])[0]

    def memory(self, limit: float) -> dict[int, float]:
        """Megabytes of each rank that answers within `limit` seconds."""
        there = [rank for rank in range(self.plan.n) if rank not in self.lost]
        return {
            rank: one.megabytes
            for rank, one in self.channel.ask(there, limit, messages.MEMORY).items()
        }

    @property
    def hosts(self) -> list[str]:
        """Name of each rank's host, by rank; none where all are on this machine."""
        return (
            []
            if self.stopped
            else [self._processes.names[host] for host in self._processes.host_of_rank]
        )

    def free_all(self) -> dict[int, str]:
        """Interrupt whatever the ranks are doing, and return when all of them are idle.

        Returns:
            the same as `bring_back`.
        """
        self.mark_dead_ranks()
        living = [rank for rank in range(self.plan.n) if rank not in self.lost]
        if not living:
            return {}
        sent = self.send(living, entry.settle)
        replaced = self.bring_back(sent, self.states(living))
        if busy := sent.unfinished():
            raise ClusterError(f"{rank_list(busy)} cannot be freed. Call cluster.restart().")
        return replaced

    def bring_back(self, sent: Replies, states: Mapping[int, RankStatus]) -> dict[int, str]:
        """Free and interrupt busy ranks.

        A rank that is not free in time, or that a person interrupts a second time, is ended; a new
        process takes its place when the group is rebuilt. Ranks that `states` shows waiting in
        communication are only freed at first: an interrupt could hit an exception that is being
        raised.

        Returns:
            for every rank that had to be ended, what is lost with it, in words.
        """
        self.broken = self._cut = True
        with contextlib.suppress(KeyboardInterrupt), interrupts.allowed():
            patience, given_up = self.patience(sent.unfinished()), set()
            communicating = {
                rank for rank, state in states.items() if state.doing == messages.COMMUNICATING
            }
            while busy := set(sent.unfinished()) - given_up - set(self.lost):
                self.free(busy & communicating, messages.FREE)
                self.channel.ask(busy - communicating, 0, messages.COME_BACK)
                communicating = set()
                sent.result.wait(seconds.AGAIN)
                given_up |= patience.given_up(busy)
        hopeless = sorted(set(sent.unfinished()) - set(self.lost)) if self.plan.forks else []
        if not hopeless:
            return {}
        names = self.patience(hopeless).ask(seconds.ANSWER_FOR_REPORT, messages.VARIABLES)
        self._processes.servers.kill(hopeless)
        sent.result.wait(seconds.LAST_FAILURE)
        for rank in hopeless:
            self.mark_dead(rank)
        return {
            rank: failures.loss(names[rank].variables if rank in names else ()) for rank in hopeless
        }

    def free(self, ranks: Iterable[int], want: str = messages.FREE_WAITING) -> None:
        """Have watchdogs end the waits of their ranks in communication; with FREE, all that they
        send and receive.
        """
        self._cut = True
        self.channel.ask(ranks, 0, want)

    def check(self) -> None:
        """While ranks are waited for: ClusterError if they cannot be reached."""
        if self.stopped:
            raise ClusterError(
                "The cluster was stopped before this cell had finished; its results are lost."
            )
        self._processes.check_controller()

    def mark_dead_ranks(self) -> None:
        """Notice which ranks have died since the last look, and print which ones will be replaced;
        nothing is sent.
        """
        self._processes.check_controller()
        # fork servers report each end, and nothing else does
        self._processes.launcher.changed = not self.plan.forks
        died = {rank: self.mark_dead(rank) for rank in {*self.newly_dead(), *self._cut_off()}}
        if died:  # a cell that nobody is waiting for may be waiting for them
            self.free(engines_with_work(self.client) - set(self.lost))
        if died and self.plan.forks:
            words = f"Since the last cell, {deaths.died_words(died)}. A new process starts without variables."
            display.say(words, sys.stdout)

    def newly_dead(self) -> list[int]:
        """The ranks that have died, as far as the launcher or ipyparallel knows, and are not in
        `lost` yet.
        """
        there, ended = set(self.client.ids), self._processes.exit_reason
        return [
            r
            for r, one in enumerate(self.joined)
            if (r not in there or ended(r, one.pid)) and r not in self.lost
        ]

    def _cut_off(self) -> list[int]:
        """The ranks whose watchdog is gone: nothing could free them from the next cell, so they
        count as dead.

        One that still works is left alone meanwhile.
        """
        self.channel.hear(0)
        ends = set(self.channel.ends) | set(self.lost) | engines_with_work(self.client)
        return [rank for rank in range(len(self.joined)) if rank not in ends]

    def wait_for_deaths(self, ranks: Iterable[int], limit: float = 0.0) -> None:
        """Note which of these ranks have died; if none has yet, one may within `limit` seconds."""
        deadline = time.monotonic() + limit
        while not (died := set(ranks) & set(self.newly_dead())) and time.monotonic() < deadline:
            time.sleep(0.01)
        for rank in died:
            self.mark_dead(rank)

    def mark_dead(self, rank: int) -> str:
        """Remember that a rank has died; how, in words."""
        self.broken = True
        # one has ended, and mpiexec ended the others
        if self.plan.engines == Mpi.name and not self.lost:
            self.lost = dict.fromkeys(range(self.plan.n), deaths.WITH_ANOTHER)
            self.lost[self._processes.launcher.first_to_end(rank)] = deaths.exit_words(None)
        if rank not in self.lost:
            self.lost[rank] = self._exit_reason(rank)
            self.last_lines[rank] = self._processes.servers.log_of(rank)
        self.faults[rank] = self._processes.fault_of(rank)
        return self.lost[rank]

    def _exit_reason(self, rank: int) -> str:
        """How the process of a rank has ended, in words; the launcher may see it later than
        ipyparallel.
        """
        deadline, pid = time.monotonic() + seconds.AFTER_DEATH, self.joined[rank].pid
        while not (how := self._processes.exit_reason(rank, pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not how and rank in self.client.ids and rank not in self.channel.ends:
            return deaths.CUT_OFF
        return how or deaths.exit_words(None)

    @property
    def host_is_lost(self) -> bool:
        """Whether a rank has died with a host that cannot be reached any more, so that no new one
        takes its place.
        """
        return (
            self.plan.forks
            and self.plan.hosts is not None
            and any(map(self._processes.servers.why_lost, self.lost))
        )

    @property
    def stopped(self) -> bool:
        """Whether the processes have been ended, or given away."""
        return self._processes is None

    def end(self, keep: bool = False) -> Processes | None:
        """End all processes; does nothing the second time, or in a process forked from the
        notebook's.

        Args:
            keep: whether to return them instead, where they can be used for another cluster.
        """
        processes, self._processes = self._processes, None
        if processes is None or os.getpid() != self._owner:
            return None
        if keep and processes.can_fork:
            return processes
        processes.stop()
        return None
