"""How long a kernel takes on a device, and a collective on a network, by closed formulas.

The algorithms are those of simulated/collectives.py, and where all links are alike, the times are the simulation's: so
no message is stepped through on 16,384 ranks. On hosts, a step of a ring takes as long as its slowest link. Ranks of a
host that belong to other groups do the same at the same time, and share the host's port. What a rank's own calls share
while they overlap, timeline.py knows.
"""

import functools
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import NormalDist

from distlab.predicted.nodes import Call, Kernel, Node
from distlab.simulated.collectives import algorithm
from distlab.simulated.network import Device, Network
from distlab.simulated.schedules import cost


@dataclass
class Costs:
    """Of nodes, on these machines."""

    network: Network
    device: Device
    ranks: int = 1

    def __post_init__(self) -> None:
        self.link = functools.cache(self.link)  # thousands of calls have the same members

    def seconds(self, node: Node, rank: int) -> float:
        """How long a node of that rank takes, alone on its ports."""
        if isinstance(node, Kernel):
            return self.device.seconds(node.flops, node.num_bytes) * self._slowest_device
        return self._seconds(node, *self.link(_ends(node, rank))[:2])

    def load(self, call: Call, rank: int) -> float:
        """The share of that time in which its bytes go through a port of the rank; the rest of it is latency."""
        seconds, (_, per_byte, _) = self.seconds(call, rank), self.link(_ends(call, rank))
        return self._seconds(call, 0.0, per_byte) / seconds if seconds else 0.0

    def ports(self, call: Call, rank: int) -> list[Hashable]:
        """What a call goes through at that rank: the port of its slowest link, in one direction or both."""
        _, _, which = self.link(_ends(call, rank))
        return [(which, way) for way, other in (("out", "recv"), ("in", "send")) if call.name != other]

    @functools.cached_property
    def _slowest_device(self) -> float:
        """How many times longer the slowest of the ranks' devices needs than the usual one."""
        return 1 + self.device.spread * NormalDist().inv_cdf(self.ranks / (self.ranks + 1))

    def _seconds(self, call: Call, latency: float, per_byte: float) -> float:
        n, size = len(call.members), call.sent[0]
        if call.peer is not None:
            return latency + size * per_byte
        if n == 1:
            return 0.0
        if call.name == "all_reduce":
            return cost(algorithm(n, size, self.network), size, n, latency, per_byte)
        if call.name in ("all_gather", "reduce_scatter"):
            return (n - 1) * (latency + size * per_byte)
        if call.name == "all_to_all":
            return sum(latency + part * per_byte for part in call.sent[1:])
        if call.name in ("gather", "scatter"):
            return latency + (n - 1) * size * per_byte
        return (n - 1).bit_length() * (latency + size * per_byte)

    def link(self, members: tuple[int, ...]) -> tuple[float, float, str]:
        """Latency, seconds a byte, and the name of the slowest link between neighbours in a group."""
        network = self.network
        inside = network.inside.latency, 1 / network.inside.bandwidth, "inside"
        ranks_here = Counter(map(network.host_of, members))
        if len(ranks_here) == 1:
            return inside
        sharing = max(network.hosts[host] / ranks for host, ranks in ranks_here.items())
        between = network.between.latency, sharing / network.between.bandwidth, "between"
        return max(inside, between, key=lambda link: link[1])


def _ends(call: Call, rank: int) -> tuple[int, ...]:
    return call.members if call.peer is None else (rank, call.peer)
