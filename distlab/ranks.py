"""The ranks of one cluster as processes and as a group: started, numbered, joined, signalled, ended.

Runs on the notebook's kernel, called by cluster.py; cell.py asks it to free and to rebuild.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from distlab import diagnosis, display, launcher
from distlab.errors import ClusterError

BUILD_SECONDS = 60.0


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
        pids: process number by rank. lost: how ranks died, in words, by rank.
        broken: whether the group must be rebuilt before it is used again.

    Raises:
        ClusterError: they could not be started; nothing is left of them then.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.pids: list[int] = []
        self.lost: dict[int, str] = {}
        self.broken = False
        self._owner = os.getpid()
        self._processes: launcher.Processes | None = None
        self._rendezvous: Any = None
        with display.starting(plan.n, plan.backend):
            try:
                self._start()
            except BaseException:
                self.stop()
                raise

    def _start(self) -> None:
        tag, folder, watcher = launcher.prepare()
        torch_thread = _Importer(folder)  # torch takes about as long to import here as the ranks take to start
        self._processes = launcher.start(self.plan.n, self.plan.engines, self.plan.threads, tag, folder, watcher)
        self._rendezvous = torch_thread.rendezvous()
        everyone = list(range(self.plan.n))
        if self.client.ids != everyone:
            raise ClusterError(
                f"ipyparallel numbered the engines {self.client.ids}, not {everyone}. Call Cluster again."
            )
        infos = self.on_each("join")
        if [info["rank"] for info in infos] != everyone:
            raise ClusterError(f"The ranks numbered themselves {[info['rank'] for info in infos]}. Call Cluster again.")
        self.pids = [info["pid"] for info in infos]

    @property
    def client(self) -> Any:
        """ipyparallel's Client."""
        return self._processes.client

    def on_each(self, name: str) -> list[Any]:
        """Run worker.<name>(rank, meeting) on every rank, at a meeting that is new; its values by rank."""
        from distlab import worker

        plan = self.plan
        meeting = self._rendezvous.next_meeting(plan.init_method, plan.backend, plan.n, plan.timeout)
        results = [self.client[rank].apply_async(getattr(worker, name), rank, meeting) for rank in range(plan.n)]
        try:
            return [result.get(timeout=BUILD_SECONDS) for result in results]
        except Exception as error:
            raise ClusterError(f"The process group could not be built: {error}. Call cluster.restart().") from error

    def rebuild(self) -> int:
        """Leave the group and build it anew on the same processes; returns how many subgroups went with the old one."""
        subgroups = max(self.on_each("rebuild"))
        self.broken = False
        return subgroups

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """Send a signal to the processes of `ranks`; one that has ended is passed over."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], number)

    def note_death(self, rank: int) -> str:
        """Remember that a rank has died; how, in words."""
        self.broken = True
        if rank not in self.lost:
            self.lost[rank] = diagnosis.exit_words(launcher.exit_status(self._processes, self.pids[rank]))
        return self.lost[rank]

    def check_whole(self) -> None:
        """ClusterError when a rank has died."""
        if self.lost:
            words = "; ".join(f"rank {rank} {how}" for rank, how in sorted(self.lost.items()))
            advice = "Call cluster.restart(): it starts new ranks, without the variables."
            raise ClusterError(f"The cluster is not whole: {words}. {advice}")

    def stop(self) -> None:
        """End all processes; nothing happens the second time, or in a process that forked off from the notebook's."""
        if self._processes is not None and os.getpid() == self._owner:
            processes, self._processes = self._processes, None
            launcher.stop(processes)
            self._rendezvous = None


class _Importer:
    """Imports torch and serves the store in a thread of its own."""

    def __init__(self, folder: str):
        self._folder = folder
        self._outcome: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            from distlab.rendezvous import Rendezvous

            self._outcome = Rendezvous(self._folder)
        except BaseException as error:
            self._outcome = error

    def rendezvous(self) -> Any:
        """The Rendezvous, when it is there; raises what the thread raised."""
        self._thread.join()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome
