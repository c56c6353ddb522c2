"""Which ranks of one generation have died, how, and where they were.

Runs on the notebook's kernel; ranks.py makes a new object for each generation. Whatever waits for
ranks asks it: cell.py, failed_cell.py, freeing.py, questions.py and tracing.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from distlab.compat.ipyparallel import engines_with_work
from distlab.diagnosis import endings
from distlab.diagnosis.endings import Ending
from distlab.notebook import seconds
from distlab.notebook.plan import Plan
from distlab.notebook.processes import Processes
from distlab.notebook.start_methods import Mpi
from distlab.wire.faults import Fault
from distlab.wire.rendezvous import Joined


class DeadRanks:
    """The ranks that have died since the group was built.

    Args:
        plan: of the cluster.
        processes: the ranks.
        joined: what each rank reported when it joined the group, its process number among it.

    Attributes:
        processes: as given; others take their place when all have ended.
        lost: how ranks have died, by rank, as far as it is marked.
        last_lines: the end of what they wrote, by rank.
        faults: where they were when a fault in compiled code ended them, by rank.
    """

    def __init__(self, plan: Plan, processes: Processes, joined: Sequence[Joined]):
        self._plan = plan
        self.processes = processes
        self._joined = joined
        self.lost: dict[int, Ending] = {}
        self.last_lines: dict[int, str] = {}
        self.faults: dict[int, Fault] = {}

    def newly_dead(self) -> list[int]:
        """The ranks that are not in `lost` yet, and are dead for the launcher or ipyparallel."""
        there = set(self.processes.client.ids)
        found = []
        for rank, joined in enumerate(self._joined):
            if rank in self.lost:
                continue
            if rank not in there or self.processes.exit_reason(rank, joined.pid):
                found.append(rank)
        return found

    def cut_off(self) -> list[int]:
        """The ranks whose watchdog is gone, which count as dead.

        Nothing could free them from the next cell. One that still works is left alone meanwhile.
        """
        channel = self.processes.channel
        channel.receive(0)
        with_work = engines_with_work(self.processes.client)
        ranks = set(range(len(self._joined)))
        return sorted(ranks - set(channel.ends) - set(self.lost) - with_work)

    def mark_all(self) -> dict[int, Ending]:
        """Mark the ranks that have died or are cut off, and return how, by rank."""
        found = set(self.newly_dead()) | set(self.cut_off())
        return {rank: self.mark_dead(rank) for rank in sorted(found)}

    def wait_for_deaths(self, ranks: Iterable[int], limit: float = 0.0) -> None:
        """Mark which of these ranks have died; if none has yet, one may within `limit` seconds."""
        among = set(ranks)
        deadline = time.monotonic() + limit
        died = among & set(self.newly_dead())
        while not died and time.monotonic() < deadline:
            time.sleep(0.01)
            died = among & set(self.newly_dead())
        for rank in died:
            self.mark_dead(rank)

    def mark_dead(self, rank: int) -> Ending:
        """Remember that a rank has died, and return how."""
        if self._plan.engines == Mpi.name:
            self._mark_all_of_mpi(rank)
        elif rank not in self.lost:
            self.lost[rank] = self.exit_reason(rank)
            self.last_lines[rank] = self.processes.servers.log_of(rank)
        self.faults[rank] = self.processes.fault_of(rank)
        return self.lost[rank]

    def _mark_all_of_mpi(self, rank: int) -> None:
        """Remember that all ranks have died, once: one has ended, and mpiexec ended the others.

        Args:
            rank: one of them.
        """
        if self.lost:
            return
        self.lost = dict.fromkeys(range(self._plan.n), endings.WITH_ANOTHER)
        first = self.processes.launcher.first_to_end(otherwise=rank)
        self.lost[first] = endings.UNKNOWN

    def exit_reason(self, rank: int) -> Ending:
        """How the process of a dead rank has ended.

        The launcher may see it later than ipyparallel, so it has a while.
        """
        pid = self._joined[rank].pid
        deadline = time.monotonic() + seconds.AFTER_DEATH
        ending = self.processes.exit_reason(rank, pid)
        while ending is None and time.monotonic() < deadline:
            time.sleep(0.02)
            ending = self.processes.exit_reason(rank, pid)
        if ending is not None:
            return ending
        if rank in self.processes.client.ids and rank not in self.processes.channel.ends:
            return endings.CUT_OFF
        return endings.UNKNOWN
