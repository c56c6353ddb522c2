"""How long a kernel takes on a device, and a collective on a network, by closed formulas.

Made by prediction.py and asked by timeline.py, in the notebook's process. A kernel is here what a
device runs.

A network of NCCL's is asked of nccl.py. On others, the algorithms are those of
simulated/collectives.py, and where all links are alike, the times are the simulation's, but no
message is stepped through, which would take too long on 16,384 ranks. On hosts, a step of a ring
takes as long as its slowest link, and a group has a ring on each card of its ranks. What other
groups share with it, placement.py knows, and what a rank's own calls share while they overlap,
timeline.py.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from distlab.simulated.collectives import algorithm
from distlab.simulated.devices import Device
from distlab.simulated.network import Network
from distlab.simulated.schedules import cost
from distlab_predict import kernels, nccl
from distlab_predict.nccl_groups import Group
from distlab_predict.nodes import FETCH, Call, Kernel, Node
from distlab_predict.placement import Placement, placement_of, slowest_of


class Cost(NamedTuple):
    """What a node costs when it is alone on its ports.

    Attributes:
        seconds: how long it takes.
        load: the share of that time in which bytes of a call go through, as the rest of it is
            latency; None for a kernel.
        ports: those that a call uses on its rank: its slowest link, in one direction or both.
        how: the algorithm and the protocol of a call, "ring" or "tree, LL128"; "" for a kernel.
        basis: what the seconds rest on: "network" for a call; of a kernel, see kernels.py.
        contention: the share of its speed that computing loses while a call goes on; 0 for a
            kernel.
    """

    seconds: float
    load: float | None
    ports: list[Hashable]
    how: str
    basis: str
    contention: float = 0.0


class Formula(NamedTuple):
    """What a call takes by a formula.

    Attributes:
        latency: seconds.
        moving: seconds that its bytes need on the slowest link.
        link: the slowest link, "inside" of a host or "between" hosts.
        how: the algorithm and the protocol.
        channels: how many multiprocessors it occupies; 0 if nobody knows.
    """

    latency: float
    moving: float
    link: str
    how: str
    channels: int = 0


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
    _placements: dict[tuple[int, ...], Placement] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # by all of a kernel that its cost depends on
    _kernels: dict[Hashable, Cost] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _formulas: dict[Hashable, Formula] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def of(self, node: Node, rank: int) -> Cost:
        """What a node of this rank costs."""
        if isinstance(node, Kernel):
            return self._of_kernel(node)
        found = self.formula(node, rank)
        ports = _ports(node, found.link)
        contention = self._contention(found.channels)
        if self.device.measured is not None:
            known = self.device.measured.call(
                node.name, found.link, len(node.members), found.latency, found.moving
            )
            if known is not None:
                basis = known.basis
                return Cost(known.seconds, known.load, ports, found.how, basis, contention)
        seconds = found.latency + found.moving
        load = found.moving / seconds if seconds else 0.0
        return Cost(seconds, load, ports, found.how, "network", contention)

    def _of_kernel(self, kernel: Kernel) -> Cost:
        """What a kernel costs, as one like it has before."""
        alike = (
            kernel.name,
            kernel.kind,
            kernel.shape,
            kernel.dtype,
            kernel.flops,
            kernel.num_bytes,
        )
        cost = self._kernels.get(alike)
        if cost is None:
            usual = kernels.seconds_of(kernel, self.device)
            seconds = usual.seconds * self._slowest_device
            cost = self._kernels[alike] = Cost(seconds, None, [], "", usual.basis)
        return cost

    def _contention(self, channels: int) -> float:
        """What computing loses: as the device says, or the multiprocessors that a call occupies.

        Kernels of a trace with calls were measured beside them, and have lost it already.
        """
        device = self.device
        if device.measured is not None and device.measured.calls:
            return 0.0
        if device.contention or device.processors is None:
            return device.contention
        return min(channels / device.processors.count, 0.9)

    @cached_property
    def _slowest_device(self) -> float:
        """How many times longer the slowest of the ranks' devices needs than the usual one."""
        return slowest_of(self.ranks, self.device.spread)

    def formula(self, call: Call, rank: int) -> Formula:
        """What a call of this rank takes by a formula, and on which link."""
        asks_splits = call.name == "all_to_all" or call.peer is not None
        key = (call.name, call.sent, call.members, call.peer, rank if asks_splits else None)
        if key not in self._formulas:
            if self.network.nccl is None:
                self._formulas[key] = self._plain(call, rank)
            else:
                self._formulas[key] = self._by_nccl(call, rank, self.network.nccl)
        return self._formulas[key]

    def _plain(self, call: Call, rank: int) -> Formula:
        """By the formulas of simulated/schedules.py."""
        link = self.link(_ends(call, rank))
        messages, num_bytes, how = self._sent(call)
        return Formula(messages * link.latency, num_bytes * link.per_byte, link.name, how)

    def _by_nccl(self, call: Call, rank: int, generation: str) -> Formula:
        """By nccl.py."""
        ends = _ends(call, rank)
        if len(ends) == 1:
            return Formula(0.0, 0.0, "inside", "alone")
        placement = self._placement(ends)
        group = self._group(placement, placement.left_around)
        to_all = self._group(placement, placement.left_to_all)
        n = len(ends)
        size = call.sent[0]
        if call.peer is not None:
            chosen = nccl.exchange(*_by_place([0, size], 0, placement), 1, to_all, generation)
        elif call.name == "all_to_all":
            me = call.members.index(rank)
            chosen = nccl.exchange(*_by_place(call.sent, me, placement), n - 1, to_all, generation)
        elif call.name in ("gather", "scatter"):
            sent = [0] + [size] * (n - 1)
            chosen = nccl.exchange(*_by_place(sent, 0, placement), n - 1, to_all, generation)
        elif call.name == FETCH:
            chosen = nccl.fetch(size, group)
        elif call.name == "barrier":
            chosen = nccl.choose("all_reduce", 4, group, generation)
        else:
            parts = n if call.name in ("all_gather", "reduce_scatter") else 1
            chosen = nccl.choose(call.name, parts * size, group, generation)
        kind = "message" if call.peer is not None else chosen.algorithm
        how = f"{kind}, {chosen.protocol}"
        latency = chosen.seconds - chosen.moving
        return Formula(latency, chosen.moving, chosen.link, how, chosen.channels)

    def _group(self, placement: Placement, left: float) -> Group:
        """A group as nccl.py wants it."""
        latency = 0.0 if self.network.between is None else self.network.between.latency
        return Group(
            ranks=placement.ranks,
            hosts=placement.number_of_hosts,
            inside=self.network.inside.bandwidth,
            between=placement.between,
            latency=latency,
            cards=placement.cards,
            left=left,
        )

    def _sent(self, call: Call) -> tuple[float, float, str]:
        """How many messages of a call come one after another, their bytes, and the algorithm."""
        n = len(call.members)
        size = call.sent[0]
        if call.peer is not None:
            return 1, size, "message"
        if n == 1:
            return 0, 0, "alone"
        if call.name == FETCH:
            return 1, size, "copy engine"
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

    def _placement(self, members: tuple[int, ...]) -> Placement:
        if members not in self._placements:
            self._placements[members] = placement_of(members, self.network)
        return self._placements[members]

    def link(self, members: tuple[int, ...]) -> Slowest:
        """The slowest link between neighbours in a group of these ranks."""
        network = self.network
        inside = Slowest(network.inside.latency, 1 / network.inside.bandwidth, "inside")
        placement = self._placement(members)
        if network.between is None or not placement.between:
            return inside
        per_byte = 1 / (placement.between * placement.left_around)
        between = Slowest(network.between.latency, per_byte, "between")
        nobody_is_inside = placement.number_of_hosts == placement.ranks
        if nobody_is_inside or between.per_byte > inside.per_byte:
            return between
        return inside


def _ends(call: Call, rank: int) -> tuple[int, ...]:
    """The ranks between which a call of this rank sends."""
    if call.peer is not None:
        return rank, call.peer
    return call.members


def _by_place(sent: Sequence[int], me: int, placement: Placement) -> tuple[int, int]:
    """How many bytes a member sends in its host, and to other hosts.

    Args:
        sent: what stays on the member, and then what it sends to the members after it.
        me: the number of the member in the group.
        placement: of the group.
    """
    here = placement.hosts[me]
    inside = 0
    for distance in range(1, placement.ranks):
        if placement.hosts[(me + distance) % placement.ranks] == here:
            inside += sent[distance]
    return inside, sum(sent) - sent[0] - inside


def _ports(call: Call, link: str) -> list[Hashable]:
    """The ports of a rank that a call of it uses."""
    ports: list[Hashable] = []
    if call.name != "recv":
        ports.append((link, "out"))
    if call.name != "send":
        ports.append((link, "in"))
    return ports
