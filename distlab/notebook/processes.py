"""The processes of one running cluster: a controller, engines, and what forks or launches them.

Called by ranks.py in the notebook's kernel; starting.py starts them. Engines are replaced here, and
the processes are ended together.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from typing import Any

import psutil

from distlab.diagnosis import endings
from distlab.diagnosis.advice import on_limit_of_processes
from distlab.errors import ClusterError, HostError
from distlab.launch import reaper
from distlab.notebook import hosts, seconds
from distlab.notebook.launcher import OF_PYTEST, Launcher
from distlab.notebook.plan import Plan
from distlab.wire import faults
from distlab.wire.channel import ControlChannel
from distlab.wire.rendezvous import Meeting


def surroundings() -> tuple[dict[str, str], str]:
    """What the ranks get from this process as it is now.

    Any change counts: torch and other libraries read some variables once, when they are imported.
    """
    variables = dict(os.environ)
    variables.pop(OF_PYTEST, None)  # which no rank gets, and which is another one in each test
    return variables, os.getcwd()


class Processes:
    """A controller and its engines, which run and are connected: engine ids are 0 to n - 1.

    Args:
        launcher: what has launched them, and launches those that replace one.
        client: ipyparallel's Client.
        channel: over which ranks are asked what they are doing.
        store: address and port of the store in which the engines meet as ranks.
        store_here: that store, where this process serves it: it lasts as long as somebody holds it.
        threads: OpenMP threads of each engine; None for engines that others started.
        host_of_rank: number of each rank's host; none if all are on one machine.
        surroundings: what `surroundings` returned before they were started.
        cleanup: what ends all of them, and removes their folder.

    Attributes:
        folder: private folder for connection files and logs, removed by `stop`.
        tag: the value of `reaper.TAG` in the environment of every process.
        host_names: of the hosts, where there are any.
        servers: the fork servers, where they start the engines.
        launcher, client, channel, store, threads, host_of_rank: as given.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        client: Any,
        channel: ControlChannel,
        store: tuple[str, int],
        store_here: Any,
        threads: int | None,
        host_of_rank: tuple[int, ...],
        surroundings: tuple[dict[str, str], str],
        cleanup: contextlib.ExitStack,
    ):
        self.launcher = launcher
        self.client = client
        self.channel = channel
        self.store = store
        self.threads = threads
        self.host_of_rank = host_of_rank
        self.folder = launcher.folder
        self.tag = launcher.tag
        self.host_names = launcher.host_names
        self.servers = launcher.servers
        self._plan = launcher.plan
        self._store_here = store_here
        self._surroundings = surroundings
        self._cleanup = cleanup

    def next_meeting(self, plan: Plan, world_size: int) -> Meeting:
        """Where the ranks of a new generation meet, whose keys no rank has used before.

        Args:
            plan: of the cluster.
            world_size: how many ranks meet there, from rank 0 on.
        """
        host, port = self.store
        return Meeting(
            init_method=plan.init_method,
            backend=plan.backend if plan.network is None else "simulated",
            world_size=world_size,
            timeout=plan.timeout,
            patience=seconds.BUILD,
            host=host,
            port=port,
            name=os.path.join(self.folder, f"group-{time.monotonic_ns()}"),
            channel=self.channel.address,
            hosts=self.host_of_rank[:world_size],
            builds=not plan.direct,
        )

    # --- for another cluster ---

    @property
    def can_fork(self) -> bool:
        """Whether engines can be replaced one by one.

        Fork servers start them, and all that the engines need is alive.
        """
        if not self._plan.forks or self.launcher.controller_ended:
            return False
        return any(set(one.hosts) - set(one.lost) for one in self.servers.connections)

    def can_serve(self, plan: Plan) -> bool:
        """Whether engines forked here for this plan are as if all had been started now."""
        return plan.starts_like(self._plan) and self._surroundings == surroundings()

    @property
    def is_only_here(self) -> bool:
        """Whether one fork server on this machine starts the engines."""
        return self._plan.forks and self._plan.hosts is None

    def end_engines(self) -> None:
        """End all engines, and what they have started.

        Fork server and controller wait for new ones.
        """
        self._end(set(self.client.ids), list(self.servers.pids.items()))
        server = psutil.Process(self.servers.to(0).process.pid)
        stay = {server.pid}
        stay |= {child.pid for child in server.children(recursive=True)}
        cluster = reaper.processes_of(self.tag)
        reaper.end_processes([process for process in cluster if process.pid not in stay])

    def replace(self, ids: list[int], threads: int | None, all_ids: list[int], fresh: bool) -> None:
        """End the engines with these ids, if they run, and fork new ones with the same ids.

        Args:
            ids: those to replace.
            threads: OpenMP threads of each new engine; None for as many as the first ones have.
            all_ids: all engines that there are afterwards.
            fresh: whether each new engine becomes a new interpreter.
        """
        beyond = set(self.client.ids) - set(all_ids)
        unwanted = beyond | set(ids)
        old = list(self.servers.pids.items())
        try:
            self._reach_lost_hosts(ids)
            self._end(unwanted, old)
            self.launcher.fork(ids, threads or self.threads or 1, fresh)
            self._wait_for_engines(all_ids, old)
        except HostError as error:
            left = [rank for rank in all_ids if not self.servers.why_lost(rank)]
            raise HostError(
                f"{error} Other ranks keep their variables, without a group: pull and run with "
                f"ranks={left} work. heal() tries again, for up to {hosts.RETURN_SECONDS:g} s, and "
                "restart() starts new ranks."
            ) from error
        except ClusterError as error:
            again = "Call cluster.restart()."
            advice = on_limit_of_processes(str(error))
            if advice:
                again = f"{advice} Then call cluster.restart()."
            raise ClusterError(f"New processes did not start: {error} {again}") from error

    def _end(self, ids: set[int], old: Collection[tuple[int, int]]) -> None:
        """End the engines with these ids, and wait until ipyparallel and the channel know it.

        Args:
            ids: those that are to end; nothing happens to one that has ended.
            old: see `Launcher.wait`.
        """
        self.servers.kill(ids)
        self.launcher.wait(lambda: ids.isdisjoint(self.client.ids), client=self.client, old=old)
        self.channel.receive(0)  # this notes that their connections have ended

    def _wait_for_engines(self, ids: list[int], old: Collection[tuple[int, int]]) -> None:
        """Wait until exactly these engines have registered, and their store is served.

        Args:
            ids: all engines that there are to be.
            old: see `Launcher.wait`.
        """

        def store_of_all() -> tuple[str, int] | None:
            if self.client.ids != ids:
                return None
            return self.servers.to(0).store

        self.store = self.launcher.wait(store_of_all, client=self.client, old=old)

    def _reach_lost_hosts(self, engines: list[int]) -> None:
        """Start new fork servers on those hosts of some engines that were lost.

        Raises:
            ClusterError: nothing starts their server again.
            HostError: a host does not come back in time.
        """
        lost = set()
        for engine in engines:
            if self.servers.why_lost(engine):
                lost.add(self.servers.host_of_engine[engine])
        if not lost:
            return
        wanted = self._plan.hosts
        if wanted is None or wanted.job is not None:
            raise ClusterError(
                "The process that forks the ranks is lost, and does not start again by itself."
            )
        here = self.channel.address[0]
        until = time.monotonic() + hosts.RETURN_SECONDS
        self.launcher.reach(wanted, sorted(lost), here, until)

    # --- ends ---

    def raise_if_controller_ended(self) -> None:
        """Raise ClusterError if the controller has ended, and end the ranks with it."""
        self.launcher.raise_if_controller_ended()

    def exit_reason(self, rank: int, pid: int) -> endings.Ending | None:
        """How a process of an engine has ended; None until that is known."""
        if self._plan.attached is None:
            return self.launcher.exit_reason(rank, pid)
        if rank in self.client.ids:
            return None
        return endings.UNKNOWN

    def fault_of(self, rank: int) -> faults.Fault:
        """Where the newest process of an engine was if a fault in compiled code ended it."""
        return self.launcher.fault_of(rank)

    def stop(self) -> None:
        """End every process of the cluster and remove its folder. Safe to repeat."""
        self._cleanup.close()
