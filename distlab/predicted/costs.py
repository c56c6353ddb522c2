"""How long a kernel takes on a device, and a collective on a network, by closed formulas.

The algorithms are those of simulated/collectives.py, and where all links are alike, the times are the simulation's: so
no message is stepped through on 16,384 ranks. On hosts, a step of a ring takes as long as its slowest link. Ranks of a
host that belong to other groups do the same at the same time, and share the host's port.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
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
    _links: dict[tuple[int, ...], tuple[float, float]] = field(default_factory=dict)

    def seconds(self, node: Node, rank: int) -> float:
        """How long a node of that rank takes."""
        if isinstance(node, Kernel):
            return self.device.seconds(node.flops, node.num_bytes) * self._slowest_device
        if node.peer is not None:
            latency, per_byte = self.link((rank, node.peer))
            return latency + node.sent[0] * per_byte
        return self.collective(node)

    @cached_property
    def _slowest_device(self) -> float:
        """How many times longer the slowest of the ranks' devices needs than the usual one."""
        return 1 + self.device.spread * NormalDist().inv_cdf(self.ranks / (self.ranks + 1))

    def collective(self, call: Call) -> float:
        """How long a collective takes once all its members have come."""
        n, size = len(call.members), call.sent[0]
        if n == 1:
            return 0.0
        latency, per_byte = self.link(call.members)
        if call.name == "all_reduce":
            return cost(algorithm(n, size, self.network), size, n, latency, per_byte)
        if call.name in ("all_gather", "reduce_scatter"):
            return (n - 1) * (latency + size * per_byte)
        if call.name == "all_to_all":
            return sum(latency + part * per_byte for part in call.sent[1:])
        if call.name in ("gather", "scatter"):
            return latency + (n - 1) * size * per_byte
        return (n - 1).bit_length() * (latency + size * per_byte)

    def link(self, members: tuple[int, ...]) -> tuple[float, float]:
        """Latency, and seconds a byte, of the slowest link between neighbours in a group."""
        if members not in self._links:
            self._links[members] = self._slowest(members)
        return self._links[members]

    def _slowest(self, members: tuple[int, ...]) -> tuple[float, float]:
        network = self.network
        inside = network.inside.latency, 1 / network.inside.bandwidth
        ranks_here = Counter(map(network.host_of, members))
        if len(ranks_here) == 1:
            return inside
        sharing = max(network.hosts[host] / ranks for host, ranks in ranks_here.items())
        return max(inside, (network.between.latency, sharing / network.between.bandwidth), key=lambda link: link[1])
