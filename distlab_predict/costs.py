"""How long a kernel takes on a device, and a collective on a network, by closed formulas.

The algorithms are those of simulated/collectives.py, and where all links are alike, the times are
the simulation's: so no message is stepped through on 16,384 ranks. On hosts, a step of a ring takes
as long as its slowest link. Ranks of a host that belong to other groups do the same at the same
time, and share the host's port. What a rank's own calls share while they overlap, timeline.py
knows.
"""

import functools
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import NormalDist

from distlab.simulated.collectives import algorithm
from distlab.simulated.network import Device, Network
from distlab.simulated.schedules import cost
from distlab_predict.nodes import Call, Kernel, Node


@dataclass
class Costs:
    """Of nodes, on these machines."""

    network: Network
    device: Device
    ranks: int = 1

    def __post_init__(self) -> None:
        self.link = functools.cache(self.link)  # thousands of calls have the same members

    def of(self, node: Node, rank: int) -> tuple[float, float | None, list[Hashable]]:
        """How long a node of that rank takes, alone on its ports.

        Also what it does to them, if it is a call: the share of that time in which its bytes go
        through, as the rest of it is latency; and the rank's ports, that of its slowest link in one
        direction or both.
        """
        if isinstance(node, Kernel):
            return self.device.seconds(node.flops, node.num_bytes) * self._slowest_device, None, []
        latency, per_byte, which = self.link(
            node.members if node.peer is None else (rank, node.peer)
        )
        messages, num_bytes = self._sent(node)
        moving = num_bytes * per_byte
        seconds = messages * latency + moving
        ports = [
            (which, way) for way, other in (("out", "recv"), ("in", "send")) if node.name != other
        ]
        return seconds, moving / seconds if seconds else 0.0, ports

    @functools.cached_property
    def _slowest_device(self) -> float:
        """How many times longer the slowest of the ranks' devices needs than the usual one."""
        return 1 + self.device.spread * NormalDist().inv_cdf(self.ranks / (self.ranks + 1))

    def _sent(self, call: Call) -> tuple[float, float]:
        """How many messages of a call come one after another, and their bytes."""
        n, size = len(call.members), call.sent[0]
        if call.peer is not None:
            return 1, size
        if n == 1:
            return 0, 0
        if call.name == "all_reduce":
            name = algorithm(n, size, self.network)
            return cost(name, size, n, 1.0, 0.0), cost(name, size, n, 0.0, 1.0)
        if call.name in ("all_gather", "reduce_scatter"):
            return n - 1, (n - 1) * size
        if call.name == "all_to_all":
            return n - 1, sum(call.sent[1:])
        if call.name in ("gather", "scatter"):
            return 1, (n - 1) * size
        depth = (n - 1).bit_length()
        return depth, depth * size

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
