"""The ranks of one cluster as processes and as a group: started, numbered, joined, signalled, ended.

Runs on the notebook's kernel, called by cluster.py; cell.py asks it to free and to rebuild.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distlab.client import display, interrupts
from distlab.client.arguments import FORK, Plan
from distlab.client.attached import Attached
from distlab.client.machines import Machines
from distlab.client.patience import AGAIN_SECONDS, PATIENCE_SECONDS, Patience
from distlab.client.processes import Processes, start_processes
from distlab.client.replies import Replies
from distlab.compat.ipyparallel import engines_with_work
from distlab.diagnosis import failures, report
from distlab.diagnosis.proof import heard
from distlab.errors import ClusterError
from distlab.launch import mpiexec, slurm
from distlab.launch.hosts import SSH_NAME
from distlab.rank import entry
from distlab.simulated import entry_points as simulated
from distlab.text import rank_list
from distlab.wire import messages
from distlab.wire.messages import FREE, FREE_WAITING, Answer, RankStatus

BUILD_SECONDS = 60.0
ANSWER_SECONDS = 0.5  # what a rank has to answer when its state is to be reported
DEATH_SECONDS = 0.2  # for the launcher to see that a process has ended whose connections are lost
KILL_SECONDS = 10.0  # for the notebook to hear that a rank that it ended has ended


class Ranks:
    """Processes that are ranks 0 to n - 1 of a group; they run when the constructor returns.

    Attributes:
        pids: process number by rank. machines: where these are. broken: whether the group must be rebuilt before use.
        lost: how ranks died, in words, by rank. last_lines: the end of what they wrote.
        can_respawn: whether a rank that dies is replaced by a new one, by itself.

    Raises:
        ClusterError: they could not be started; nothing is left of them then.
    """

    def __init__(self, plan: Plan, warm: Processes | None = None):
        self.plan = plan
        self.lost: dict[int, str] = {}
        self.last_lines: dict[int, str] = {}
        self.can_respawn = plan.engines in (FORK, SSH_NAME, slurm.NAME)
        self.cells = itertools.count(1)  # of a simulated cluster
        self._cut = False  # whether connections between ranks were shut down since the group was built
        self._simulates = False  # whether the ranks were told that they are on simulated machines
        self._owner = os.getpid()
        self._processes: Processes | Attached | None = warm
        with display.starting(plan.n, plan.backend):
            try:
                self._build(list(range(plan.n)))
            except BaseException:
                self.stop()
                raise

    def _build(self, new: list[int]) -> str:
        """Build the group, with new processes for the ranks `new`; what went with an old group, in words."""
        plan, old, everyone = self.plan, self._processes, list(range(self.plan.n))
        if new and old is not None and old.can_fork:
            old.replace(new, plan.threads or old.threads, everyone)
        elif new:  # all of them: the first time, or because all have ended with the process that forks them
            self._processes = start_processes(plan) if plan.attached is None else Attached(plan.attached.client)
            if old is not None:
                old.stop()
        backend = plan.backend if plan.network is None else "simulated"
        meeting = self._processes.rendezvous.next_meeting(plan.init_method, backend, plan.n, plan.timeout)
        try:
            if plan.network is not None or self._simulates:
                self.client.direct_view("all").apply_async(simulated.use, plan.network)
                self._simulates = plan.network is not None
            whole = not self._cut and not new
            results = [
                self.client[rank].apply_async(entry.join, rank, meeting)
                if rank in new
                else self.client[rank].apply_async(entry.rebuild, rank, meeting, whole)
                for rank in everyone
            ]
            values = [result.get(timeout=BUILD_SECONDS) for result in results]
        except Exception as error:
            raise ClusterError(f"The process group could not be built: {error}. Call cluster.restart().") from error
        self.pids = [values[rank]["pid"] if rank in new else self.pids[rank] for rank in everyone]
        names = [values[rank]["machine"] if rank in new else self.machines.names[rank] for rank in everyone]
        self.machines = Machines(self._processes.channel, self.pids, names)
        self.plan = replace(plan, threads=plan.threads or self._processes.threads)
        self.lost, self.broken, self._cut = {}, False, False
        left = [values[rank] for rank in everyone if rank not in new]
        return failures.gone_with_group(*(any(one[what] for one in left) for what in ("subgroups", "rpc")))

    def release(self) -> Processes | None:
        """Give the processes away, to be used for another cluster; None when they have to be stopped instead."""
        if os.getpid() != self._owner or not self._processes.can_fork:
            return None
        processes, self._processes = self._processes, None
        return processes

    @property
    def client(self) -> Any:
        """ipyparallel's Client."""
        return self._processes.client

    def send(self, ranks: Iterable[int], function: Callable[..., Any], *args: Any) -> Replies:
        """Have some ranks call a function, when they have ended what they do now."""
        targets = list(ranks)
        return Replies(self.client.direct_view(targets).apply_async(function, *args), targets)

    @interrupts.held()
    def rebuild(self, anew: bool = False) -> str:
        """Build the group anew, with a new process for every rank that has died; the others keep their variables.

        An interrupt ends the wait for what ranks do still, and nothing else: ranks of which some are told to meet and
        others not would wait for each other.

        Args:
            anew: whether connections that are whole are built anew, too, and RPC ends with them.

        Returns:
            what went with the old group, in sentences.

        Raises:
            ClusterError: a rank has died and the launcher cannot start single ranks; or one is busy for too long.
        """
        self.note_deaths()
        self._cut |= anew
        deadline = time.monotonic() + BUILD_SECONDS
        while busy := engines_with_work(self.client) - set(self.lost):  # with what they were sent before
            if time.monotonic() > deadline:
                words = f"an earlier cell still runs on {rank_list([*busy])} after {BUILD_SECONDS:g} s"
                raise ClusterError(f"The process group cannot be rebuilt: {words}. Call cluster.interrupt() first.")
            with interrupts.allowed():
                time.sleep(0.002)
        if self.lost and not self.can_respawn:
            first = {rank: how for rank, how in self.lost.items() if how != failures.WITH_ANOTHER}
            advice = "Call cluster.restart(): it starts new ranks, without the variables."
            raise ClusterError(f"The cluster is not whole: {failures.deaths(first)}. {advice}")
        return self._build(sorted(self.lost))

    def free_all(self) -> dict[int, str]:
        """Interrupt whatever the ranks do, and return when all of them are idle.

        A rank may not have begun yet with what it was sent: it is asked again until it answers a question.

        Returns:
            as `bring_back`.

        Raises:
            ClusterError: a rank does not come back and cannot be replaced.
        """
        self.note_deaths()
        living = [rank for rank in range(self.plan.n) if rank not in self.lost]
        if not living:
            return {}
        settled = self.send(living, entry.settle)
        replaced = self.bring_back(settled, signal.SIGINT, self.states(living))
        if busy := settled.unfinished():
            raise ClusterError(f"{rank_list(busy)} cannot be freed. Call cluster.restart().")
        return replaced

    def bring_back(self, sent: Replies, number: int, states: Mapping[int, RankStatus]) -> dict[int, str]:
        """Bring busy ranks back: freed and interrupted where `number` is SIGINT, the default; else by that signal.

        A rank that does not come back in time, or that a person interrupts a second time, is ended; a new process takes
        its place when the group is rebuilt.

        Args:
            sent: what they do. states: what they did at the last look. To free those that wait in communication is
                enough, and interrupts no error on its way.

        Returns:
            for every rank that had to be ended, what is lost with it, in words.
        """
        self.broken = self._cut = True
        with contextlib.suppress(KeyboardInterrupt), interrupts.allowed():
            if number != signal.SIGINT:
                self._kill(sent.unfinished(), number)
                sent.result.wait(PATIENCE_SECONDS)
                return {}
            patience, given_up = self.patience(sent.unfinished()), set()
            waiting = {rank for rank, state in states.items() if state.doing == messages.COMMUNICATING}
            while busy := set(sent.unfinished()) - given_up:
                self.free(busy & waiting, FREE)
                self._processes.channel.ask(busy - waiting, 0, messages.COME_BACK)
                waiting = set()
                sent.result.wait(AGAIN_SECONDS)
                given_up |= patience.given_up(busy)
        hopeless = sent.unfinished() if self.can_respawn else []
        if not hopeless:
            return {}
        names = self.patience(hopeless).ask(ANSWER_SECONDS, messages.VARIABLES)
        self._kill(hopeless, signal.SIGKILL)
        sent.result.wait(KILL_SECONDS)
        for rank in hopeless:
            self.note_death(rank)
        return {rank: _loss(names.get(rank)) for rank in hopeless}

    def _kill(self, ranks: Iterable[int], number: int) -> None:
        """Send a signal to the processes of some ranks; one that has ended is passed over."""
        for rank in ranks:
            self._processes.signal(rank, self.pids[rank], number)

    def free(self, ranks: Iterable[int], want: str = FREE_WAITING) -> None:
        """Have the watchdogs of some ranks end their waits in communication; with FREE, all that they send and receive.

        A rank that is about to fail as another one has fails then by itself.
        """
        self._cut = True
        self._processes.channel.ask(ranks, 0, want)

    def printed(self) -> dict[int, str]:
        """What functions of remote calls have printed since this was asked last, by the rank that ran them."""
        return {} if self.stopped else self._processes.channel.printed()

    def patience(self, ranks: Iterable[int]) -> Patience:
        """Patience with these ranks, which begins now."""
        return Patience(self._processes.channel, {rank: self.machines.local_pid(rank) for rank in ranks})

    def states(self, ranks: Sequence[int], patient: bool = False) -> dict[int, RankStatus]:
        """What these ranks do now; with `patient`, one that only waits for a CPU gets more time to answer."""
        with_work = engines_with_work(self.client)
        answers = self.patience(ranks).ask(ANSWER_SECONDS) if patient else self._processes.channel.ask(ranks)
        return {rank: heard(rank, answers.get(rank), rank in with_work) for rank in ranks}

    @property
    def stopped(self) -> bool:
        """Whether the processes have been ended, or given away."""
        return self._processes is None

    def describe(self) -> list[dict[str, Any]]:
        """Number, process id, state in words and memory in megabytes of each rank, as `Cluster.describe` has them."""
        lost = self.lost | {r: self._processes.how_ended(r, self.pids[r]) for r in self.unnoted_deaths()}
        there = [rank for rank in range(self.plan.n) if rank not in lost]
        does = {rank: report.activity(status) for rank, status in self.states(there, patient=True).items()} | lost
        memory, hosts = self.machines.megabytes(there), self.hosts
        return [
            {"rank": rank, "pid": pid, "state": does[rank], "megabytes": memory.get(rank)}
            | ({"host": hosts[rank]} if hosts else {})
            for rank, pid in enumerate(self.pids)
        ]

    @property
    def hosts(self) -> list[str]:
        """Name of each rank's host, by rank; none where all are on this machine."""
        return [] if self.stopped else [self._processes.names[home] for home in self._processes.rendezvous.hosts]

    def checks(self) -> tuple[str, str, int, float]:
        """Arguments for entry.begin_checks, new for every cell that is checked."""
        return (f"checked/{uuid.uuid4().hex}", *self._processes.rendezvous.address, self.plan.timeout)

    def check(self) -> None:
        """While ranks are waited for: ClusterError when they are not reachable; no wait for those that have ended."""
        if self.stopped:
            raise ClusterError("The cluster was stopped before this cell had ended, and its results are lost.")
        self._processes.check_controller()

    def ready(self, targets: Sequence[int]) -> None:
        """Before a cell: every rank is there and the group is sound; healed where it was left broken.

        Targets on hosts that are left are used without a group as long as another host is lost.
        """
        self.note_deaths()
        if self.broken and (set(targets) & set(self.lost) or not self.host_is_lost):
            self.rebuild()

    @property
    def host_is_lost(self) -> bool:
        """Whether a rank has died with a host that is not reached any more."""
        return any(map(self._processes.host_is_lost, self.lost))

    def note_deaths(self) -> None:
        """Notice which ranks have died since anybody looked, and say which will be replaced. Nothing is sent for this.

        Raises:
            ClusterError: the process that carries messages to and from them has ended.
        """
        self._processes.check_controller()
        died = {rank: self.note_death(rank) for rank in self.unnoted_deaths()}
        if died:  # a cell that nobody waits for now may wait for them
            self.free(engines_with_work(self.client) - set(self.lost))
        if died and self.can_respawn:
            print(failures.died_between_cells(died, self.host_is_lost))

    def died_since(self, pids: Sequence[int]) -> dict[int, str]:
        """How the ranks have died, in words, whose processes these were and have ended: as one that served a call."""
        deadline = time.monotonic() + DEATH_SECONDS
        while not (died := [rank for rank, pid in enumerate(pids) if self._processes.has_ended(rank, pid)]):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return {rank: self.note_death(rank, pids[rank]) for rank in died}

    def unnoted_deaths(self) -> list[int]:
        """The ranks that have died as far as the launcher or ipyparallel know, and are not in `lost`."""
        there, ended = set(self.client.ids), self._processes.has_ended
        return [r for r, pid in enumerate(self.pids) if (r not in there or ended(r, pid)) and r not in self.lost]

    def note_death(self, rank: int, pid: int | None = None) -> str:
        """Remember that a rank has died; how, in words. Where `pid` is of a process before, nothing is remembered."""
        if pid is not None and pid != self.pids[rank]:
            return self._processes.how_ended(rank, pid)
        self.broken = True
        if self.plan.engines == mpiexec.NAME and not self.lost:  # one has ended, and mpiexec ended the others
            self.lost = dict.fromkeys(range(self.plan.n), failures.WITH_ANOTHER)
            self.lost[self._processes.first_to_end(rank)] = failures.exit_words(None)
        if rank not in self.lost:
            self.lost[rank] = self._processes.how_ended(rank, self.pids[rank])
            self.last_lines[rank] = self._processes.log_of(rank)
        return self.lost[rank]

    def stop(self) -> None:
        """End all processes; nothing happens the second time, or in a process that forked off from the notebook's."""
        if self._processes is not None and os.getpid() == self._owner:
            processes, self._processes = self._processes, None
            processes.stop()


def _loss(answer: Answer | None) -> str:
    names = answer.variables if answer is not None else None
    if names is None:
        return "and its variables are lost"
    return f"and its variables are lost: {', '.join(names)}" if names else "and it had no variables"
