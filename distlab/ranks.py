"""The ranks of one cluster as processes and as a group: started, numbered, joined, signalled, ended.

Runs on the notebook's kernel, called by cluster.py; cell.py asks it to free and to rebuild.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from distlab import diagnosis, interrupts, live, mpiexec, report
from distlab.deadlock import State
from distlab.errors import ClusterError, rank_list
from distlab.line import COME_BACK, FREE
from distlab.lookout import ANSWER_SECONDS
from distlab.patience import AGAIN_SECONDS, PATIENCE_SECONDS, Patience, ask
from distlab.processes import FORK, Processes, start_processes
from distlab.remote import on_rank

BUILD_SECONDS = 60.0
KILL_SECONDS = 10.0  # for the notebook to hear that a rank that it ended has ended


@dataclass(frozen=True)
class Plan:
    """How a cluster is to be made; checked values, see `Cluster` for their meaning."""

    n: int
    backend: str
    init_method: str
    engines: str
    timeout: float
    threads: int


class Ranks:
    """Processes that are ranks 0 to n - 1 of a group; they run when the constructor returns.

    Attributes:
        pids: process number by rank. lost: how ranks died, in words, by rank. last_lines: the end of what they wrote.
        broken: whether the group must be rebuilt before it is used again.

    Raises:
        ClusterError: they could not be started; nothing is left of them then.
    """

    def __init__(self, plan: Plan, warm: Processes | None = None):
        self.plan = plan
        self.pids: list[int] = []
        self.lost: dict[int, str] = {}
        self.last_lines: dict[int, str] = {}
        self.broken = False
        self._owner = os.getpid()
        self._processes = warm
        with live.starting(plan.n, plan.backend):
            try:
                self._start()
            except BaseException:
                self.stop()
                raise

    def _start(self) -> None:
        plan, everyone = self.plan, list(range(self.plan.n))
        if self._processes is None:
            self._processes = start_processes(plan.n, plan.engines, plan.threads)
        else:
            self._processes.replace(everyone, plan.threads, everyone)
        if self.client.ids != everyone:
            raise ClusterError(
                f"ipyparallel numbered its engines {self.client.ids}, not {everyone}. Call Cluster again."
            )
        with interrupts.allowed():
            infos = self._on_each(dict.fromkeys(everyone, "join"))
        if [info["rank"] for info in infos] != everyone:
            raise ClusterError(f"The ranks numbered themselves {[info['rank'] for info in infos]}. Call Cluster again.")
        self.pids = [info["pid"] for info in infos]

    def release(self) -> Processes | None:
        """Give the processes away, to be used for another cluster; None when they have to be stopped instead."""
        if os.getpid() != self._owner or self._processes is None or not self._processes.can_fork:
            return None
        processes, self._processes = self._processes, None
        return processes

    @property
    def client(self) -> Any:
        """ipyparallel's Client."""
        return self._processes.client

    def _on_each(self, names: dict[int, str]) -> list[Any]:
        """Run worker.<name>(rank, meeting) on every rank, at a meeting that is new; its values by rank."""
        plan = self.plan
        meeting = self._processes.rendezvous.next_meeting(plan.init_method, plan.backend, plan.n, plan.timeout)
        try:
            client, work = self.client, sorted(names.items())
            results = [client[rank].apply_async(on_rank, name, rank, meeting) for rank, name in work]
            return [result.get(timeout=BUILD_SECONDS) for result in results]
        except Exception as error:
            raise ClusterError(f"The process group could not be built: {error}. Call cluster.restart().") from error

    def _wait_until_idle(self) -> None:
        """Wait for what the living ranks were sent before; ClusterError when that takes too long."""
        deadline = time.monotonic() + BUILD_SECONDS
        while busy := self.with_work() - set(self.lost):
            if time.monotonic() > deadline:
                words = f"an earlier cell still runs on {rank_list([*busy])} after {BUILD_SECONDS:g} s"
                raise ClusterError(f"The process group cannot be rebuilt: {words}. Call cluster.interrupt() first.")
            with interrupts.allowed():
                time.sleep(0.002)

    @interrupts.held()
    def rebuild(self) -> int:
        """Build the group anew, with a new process for every rank that has died; the others keep their variables.

        An interrupt ends the wait for what ranks do still, and nothing else: ranks of which some are told to meet and
        others not would wait for each other.

        Returns:
            how many subgroups went with the old group.

        Raises:
            ClusterError: a rank has died and the launcher cannot start single ranks; or one is busy for too long.
        """
        self.note_deaths()
        self._wait_until_idle()
        everyone, lost = list(range(self.plan.n)), sorted(self.lost)
        if lost and not self.can_respawn:
            first = {rank: how for rank, how in self.lost.items() if how != mpiexec.WITH_ANOTHER}
            advice = "Call cluster.restart(): it starts new ranks, without the variables."
            raise ClusterError(f"The cluster is not whole: {diagnosis.deaths(first)}. {advice}")
        if lost and self._processes.can_fork:
            self._processes.replace(lost, self.plan.threads, everyone)
        elif lost:  # nobody is left who could fork; all ranks have ended with the fork server
            old, self._processes = self._processes, start_processes(len(lost), self.plan.engines, self.plan.threads)
            old.stop()
        values = self._on_each({rank: "join" if rank in lost else "rebuild" for rank in everyone})
        for rank in lost:
            self.pids[rank] = values[rank]["pid"]
        self.lost, self.broken = {}, False
        return max((values[rank] for rank in everyone if rank not in lost), default=0)

    def free_all(self) -> dict[int, str]:
        """Interrupt whatever the ranks do, and return when all of them are idle.

        A rank may not have begun yet with what it was sent: it is asked again until it answers a question.

        Returns:
            as `bring_back`.

        Raises:
            ClusterError: a rank does not come back and cannot be replaced.
        """
        everyone = [rank for rank in range(self.plan.n) if rank not in self.lost]
        if not everyone:
            return {}
        answers = self.client.direct_view(everyone).apply_async(on_rank, "settle")
        watch = live.Watch(answers, everyone)
        states = self.line.ask(everyone)
        waiting = {rank for rank, state in states.items() if state.get("doing") == "communicating"}
        replaced = self.bring_back(answers, watch.unfinished, signal.SIGINT, waiting)
        if watch.unfinished():
            raise ClusterError(f"{rank_list(watch.unfinished())} cannot be freed. Call cluster.restart().")
        return replaced

    def bring_back(
        self, result: Any, unfinished: Callable[[], list[int]], number: int, waiting: set[int]
    ) -> dict[int, str]:
        """Bring busy ranks back: freed and interrupted where `number` is SIGINT, the default; else by that signal.

        A rank that does not come back in time, or that a person interrupts a second time, is ended; a new process takes
        its place when the group is rebuilt.

        Args:
            result: the AsyncResult of what they do. unfinished: the ranks that are still busy with it.
            waiting: the ranks that wait in communication; to free them is enough, and interrupts no error on its way.

        Returns:
            for every rank that had to be ended, what is lost with it, in words.
        """
        self.broken = True
        with contextlib.suppress(KeyboardInterrupt), interrupts.allowed():
            if number != signal.SIGINT:
                self.signal(unfinished(), number)
                result.wait(PATIENCE_SECONDS)
                return {}
            patience, given_up = self.patience(unfinished()), set()
            while busy := [rank for rank in unfinished() if rank not in given_up]:
                self.signal([rank for rank in busy if rank in waiting], FREE)
                self.signal([rank for rank in busy if rank not in waiting], COME_BACK)
                waiting = set()
                result.wait(AGAIN_SECONDS)
                given_up |= patience.given_up(busy)
        hopeless = unfinished() if self.can_respawn else []
        if not hopeless:
            return {}
        names = self.ask(hopeless, ANSWER_SECONDS, variables=True)
        self.signal(hopeless, signal.SIGKILL)
        result.wait(KILL_SECONDS)
        for rank in hopeless:
            self.note_death(rank)
        return {rank: _loss(names.get(rank)) for rank in hopeless}

    def patience(self, ranks: Iterable[int]) -> Patience:
        """Patience with these ranks, which begins now."""
        return Patience(self.line, {rank: self.pids[rank] for rank in ranks})

    def ask(self, ranks: Iterable[int], seconds: float, **what: Any) -> dict[int, dict[str, Any]]:
        """What the ranks answer on the line; one that only waits for a CPU gets more than so many seconds."""
        return ask(self.line, {rank: self.pids[rank] for rank in ranks}, seconds, **what)

    def with_work(self) -> set[int]:
        """The ranks that were sent something which they have not answered yet."""
        client = self.client
        return {r for r, engine in list(client._engines.items()) if client._outstanding_dict.get(engine)}

    @property
    def stopped(self) -> bool:
        """Whether the processes have been ended, or given away."""
        return self._processes is None

    def signal(self, ranks: Iterable[int], number: int | str) -> None:
        """Send a signal to the processes of `ranks`, or have their sentinels do something: FREE or COME_BACK.

        One that has ended is passed over.
        """
        if number in (FREE, COME_BACK):
            self.line.ask(ranks, 0, do=number)
            return
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], number)

    @property
    def environment(self) -> dict[str, str]:
        """What the environment of each rank has besides the notebook's; it marks a process as the cluster's."""
        return self._processes.environment

    @property
    def line(self) -> Any:
        """The line to the sentinels."""
        return self._processes.line

    def describe(self) -> list[dict[str, Any]]:
        """Number, process id, state in words and memory in megabytes of each rank, as `Cluster.describe` has them."""
        lost = self.lost | {rank: self._processes.how_ended(self.pids[rank]) for rank in self._unnoted()}
        living = [rank for rank in range(self.plan.n) if rank not in lost]
        answers, with_work = self.ask(living, ANSWER_SECONDS), self.with_work()
        rows = []
        for rank, pid in enumerate(self.pids):
            state = report.activity(State.of(rank, answers.get(rank), rank in with_work))
            ended, megabytes = _memory(pid)
            state = lost.get(rank, "has ended" if ended else state)
            rows.append({"rank": rank, "pid": pid, "megabytes": megabytes, "state": state})
        return rows

    def checks(self) -> tuple[str, str, int, float]:
        """Arguments for worker.begin_checks, new for every cell that is checked."""
        return (f"checked/{uuid.uuid4().hex}", *self._processes.rendezvous.address, self.plan.timeout)

    @property
    def reachable(self) -> bool:
        """Whether the process that carries messages between notebook and ranks is there."""
        return not self._processes.controller_died()

    def check(self) -> None:
        """While ranks are waited for: ClusterError when they are not reachable; no wait for those that have ended."""
        if self._processes is None:
            raise ClusterError("The cluster was stopped before this cell had ended, and its results are lost.")
        self._processes.check_controller()
        self._processes.drop_engines()

    @property
    def can_respawn(self) -> bool:
        """Whether a rank that dies is replaced by a new one, by itself."""
        return self._processes.engines == FORK

    def note_deaths(self) -> dict[int, str]:
        """Notice which ranks have died since anybody looked; how, in words, by rank. Nothing is sent for this."""
        before, unnoted = set(self.lost), self._unnoted()
        for rank in unnoted:
            self.note_death(rank)
        if unnoted:  # a cell that nobody waits for now may wait for them
            self._processes.drop_engines()
            self.signal(self.with_work() - set(self.lost), FREE)
        return {rank: how for rank, how in sorted(self.lost.items()) if rank not in before}

    def _unnoted(self) -> list[int]:
        """The ranks that have died as far as the launcher or ipyparallel know, and are not in `lost`."""
        there, ended = set(self.client.ids), self._processes.has_ended
        return [r for r, pid in enumerate(self.pids) if (r not in there or ended(pid)) and r not in self.lost]

    def note_death(self, rank: int, pid: int | None = None) -> str:
        """Remember that a rank has died; how, in words. Where `pid` is of a process before, nothing is remembered."""
        if pid is not None and pid != self.pids[rank]:
            return self._processes.how_ended(pid, patience=0)
        self.broken = True
        if self._processes.end_together and not self.lost:
            self._note_end_of_all(rank)
        if rank not in self.lost:
            self.lost[rank] = self._processes.how_ended(self.pids[rank])
            self.last_lines[rank] = self._processes.log_of(rank)
        return self.lost[rank]

    def _note_end_of_all(self, rank: int) -> None:
        """Remember that every rank has ended because one did: the one that this is known of, else `rank`."""
        first = self._processes.first_to_end()
        self.lost = {first if first in range(self.plan.n) else rank: diagnosis.exit_words(None)}
        for other in range(self.plan.n):
            self.lost.setdefault(other, mpiexec.WITH_ANOTHER)

    def stop(self) -> None:
        """End all processes; nothing happens the second time, or in a process that forked off from the notebook's."""
        if self._processes is not None and os.getpid() == self._owner:
            processes, self._processes = self._processes, None
            processes.stop()


def _loss(answer: dict[str, Any] | None) -> str:
    names = (answer or {}).get("variables")
    if names is None:
        return "and its variables are lost"
    return f"and its variables are lost: {', '.join(names)}" if names else "and it had no variables"


def _memory(pid: int) -> tuple[bool, float | None]:
    """Whether a process has ended, and its memory in megabytes; None where the system does not say."""
    import psutil

    try:
        memory = psutil.Process(pid).memory_full_info()
    except psutil.NoSuchProcess:
        return True, None
    except psutil.Error:
        return False, None
    return False, getattr(memory, "pss", memory.rss) / 1e6
