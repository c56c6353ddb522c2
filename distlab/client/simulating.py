"""A cluster on machines that are not there: put on them, taken off, asked for the time. Below cluster.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from distlab.client import arguments, interrupts
from distlab.errors import ClusterError
from distlab.simulated import entry_points as simulated
from distlab.simulated.network import Network


class Simulating:
    """The part of `Cluster` that is about simulated machines."""

    @contextlib.contextmanager
    def network(self, network: Network) -> Iterator[Any]:
        """Put the ranks on simulated machines: `with cluster.network(distlab.Network("5 us", "25 GB/s")): ...`.

        The process group is built anew at both ends; variables stay, groups made with dist.new_group do not.

        Raises:
            ArgumentError: not a network, or one of another number of ranks.
        """
        network = arguments.check_network(network, self.n, self.backend)
        before = self._plan.network
        self._move_to(network)
        try:
            yield self
        finally:
            if self._ranks is not None:
                self._move_to(before)

    @interrupts.held()
    def _move_to(self, network: Network | None) -> None:
        self._plan = self.ranks.plan = replace(self._plan, network=network)
        self.ranks.rebuild()

    def clock(self) -> float:
        """Virtual seconds since the group was built, of the slowest rank; ClusterError if the cluster is not simulated.

        A cell begins on all its ranks at the same time, when the cell before has ended on the slowest.
        """
        if self._plan.network is None:
            call = 'distlab.Cluster(n, network=distlab.Network("5 us", "25 GB/s"))'
            raise ClusterError(f"This cluster has no virtual clock: it runs in real time. Make one with {call}.")
        return max(self.call(simulated.clock))

    @property
    def simulated(self) -> str:
        """What figures and tables say of times that are virtual: "simulated: 8 ranks, 5 us, 25 GB/s"; else ""."""
        return "" if self._plan.network is None else f"simulated: {self.n} ranks, {self._plan.network}"
