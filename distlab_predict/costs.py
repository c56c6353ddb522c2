"""How long a kernel takes on a device, and a collective on a network, by closed formulas.

Made by prediction.py and asked by timeline.py, in the notebook's process. A kernel is here what a
device runs.

The algorithms are those of simulated/collectives.py, and where all links are alike, the times are
the simulation's, but no message is stepped through, which would take too long on 16,384 ranks. On
hosts, a step of a ring takes as long as its slowest link. Ranks of a host that belong to other
groups do the same at the same time, and share the host's port. What a rank's own calls share while
they overlap, timeline.py knows.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

from distlab.simulated.collectives import algorithm
from distlab.simulated.devices import Device
from distlab.simulated.network import Network
from distlab.simulated.schedules import cost
from distlab_predict import kernels
from distlab_predict.nodes import Call, Kernel, Node


class Cost(NamedTuple):
    """What a node costs when it is alone on its ports.

    Attributes:
        seconds: how long it takes.
        load: the share of that time in which bytes of a call go through, as the rest of it is
            latency; None for a kernel.
        ports: those that a call uses on its rank: its slowest link, in one direction or both.
        how: the algorithm and the protocol of a call, "ring" or "tree, LL128"; "" for a kernel.
        basis: what the seconds rest on: "network" for a call; of a kernel, see kernels.py.
    """

    seconds: float
    load: float | None
    ports: list[Hashable]
    how: str
    basis: str


class Slowest(NamedTuple):
    """The slowest link between neighbours in a group.

    Attributes:
        latency: of a message, in seconds.
        per_byte: seconds.
        name: "inside" of a host, or "between" hosts.
    """

    latency: float
    per_byte: float
    name: str


@dataclass
class Costs:
    """What nodes cost on these machines.

    Attributes:
        network: of the machines.
        device: what each rank computes on.
        ranks: how many devices there are, of which the slowest sets the pace.
    """

    network: Network
    device: Device
    ranks: int = 1
    # by members, as thousands of calls have the same ones
    _links: dict[tuple[int, ...], Slowest] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def of(self, node: Node, rank: int) -> Cost:
        """What a node of this rank costs."""
        if isinstance(node, Kernel):
            usual = kernels.seconds_of(node, self.device)
            seconds = usual.seconds * self._slowest_device
            return Cost(seconds, None, [], "", usual.basis)
        ends = node.members
        if node.peer is not None:
            ends = (rank, node.peer)
        link = self.link(ends)
        messages, num_bytes, how = self._sent(node)
        moving = num_bytes * link.per_byte
        seconds = messages * link.latency + moving
        load = 0.0
        if seconds:
            load = moving / seconds
        if self.device.measured is not None:
            known = self.device.measured.call(
                node.name, link.name, len(node.members), messages * link.latency, moving
            )
            if known is not None:
                return Cost(known.seconds, known.load, _ports(node, link), how, known.basis)
        return Cost(seconds, load, _ports(node, link), how, "network")

    @cached_property
    def _slowest_device(self) -> float:
        """How many times longer the slowest of the ranks' devices needs than the usual one."""
        return 1 + self.device.spread * NormalDist().inv_cdf(self.ranks / (self.ranks + 1))

    def _sent(self, call: Call) -> tuple[float, float, str]:
        """How many messages of a call come one after another, their bytes, and the algorithm."""
        n = len(call.members)
        size = call.sent[0]
        if call.peer is not None:
            return 1, size, "message"
        if n == 1:
            return 0, 0, "alone"
        if call.name == "all_reduce":
            name = algorithm(n, size, self.network)
            messages = cost(name, size, n, 1.0, 0.0)
            num_bytes = cost(name, size, n, 0.0, 1.0)
            return messages, num_bytes, name
        if call.name in ("all_gather", "reduce_scatter"):
            return n - 1, (n - 1) * size, "ring"
        if call.name == "all_to_all":
            return n - 1, sum(call.sent[1:]), "pairwise exchange"
        if call.name in ("gather", "scatter"):
            return 1, (n - 1) * size, "star"
        depth = (n - 1).bit_length()
        if call.name == "barrier":
            return depth, depth * size, "dissemination"
        return depth, depth * size, "tree"

    def link(self, members: tuple[int, ...]) -> Slowest:
        """The slowest link between neighbours in a group of these ranks."""
        if members not in self._links:
            self._links[members] = self._slowest_link(members)
        return self._links[members]

    def _slowest_link(self, members: tuple[int, ...]) -> Slowest:
        network = self.network
        inside = Slowest(network.inside.latency, 1 / network.inside.bandwidth, "inside")
        members_by_host = Counter(network.host_of(rank) for rank in members)
        if len(members_by_host) == 1 or network.between is None:
            return inside
        # other groups have the host's other ranks, and send through its port at the same time
        sharing = 0.0
        for host, members_there in members_by_host.items():
            sharing = max(sharing, network.hosts[host] / members_there)
        between = Slowest(network.between.latency, sharing / network.between.bandwidth, "between")
        if between.per_byte > inside.per_byte:
            return between
        return inside


def _ports(call: Call, link: Slowest) -> list[Hashable]:
    """The ports of a rank that a call of it uses."""
    ports: list[Hashable] = []
    if call.name != "recv":
        ports.append((link.name, "out"))
    if call.name != "send":
        ports.append((link.name, "in"))
    return ports
