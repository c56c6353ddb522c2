"""The description of machines that are not there: hosts and what is between them.

devices.py has what computes, links.py a single link.

Made in the notebook, sent to the ranks; runs anywhere and needs neither torch nor a cluster.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distlab.arguments import (
    NO_UNIT,
    instance,
    one_of,
    quantity,
    refuse,
    share_below_1,
    whole_number,
    wrong,
)
from distlab.simulated.devices import Device as Device
from distlab.simulated.devices import set_frozen
from distlab.simulated.links import Link as Link

NCCL_GENERATIONS = ("Ampere", "Hopper", "Blackwell")
MOST_HOSTS_LISTED = 3  # in a network's name; more hosts of one size are counted
ALL_REDUCE = (
    "auto",
    "ring",
    "tree",
    "naive",
    "halving doubling",
    "recursive doubling",
    "whole ring",
)


@dataclass(frozen=True, init=False)
class Network:
    """Links between ranks, for Cluster(n, network=...).

        Network("5 us", "25 GB/s")                   # every rank has a full-duplex port of 25 GB/s
        Network(hosts=[4, 4], inside=Link("2 us", "300 GB/s"), between=Link("10 us", "12.5 GB/s"))
        Network.named("100 Gb/s Ethernet")

        Network.named("H100 hosts", hosts=[8] * 16)  # 8 cards of 400 Gb/s in each host, and NCCL

    Ranks are numbered host by host. Inside a host each rank has its own port. Without `rails`, all
    messages that leave or enter the host share its one port. A host is a domain of NVLink: for a
    rack of 72 GPUs with one NVLink, give hosts=[72], and rails=72 as each has its own card.

    Args:
        latency, bandwidth: of the link between any two ranks, as for `Link`.
        hosts: numbers of ranks by host.
        inside: the link in a host.
        between: the link between hosts; with `rails`, that of each network card.
        rails: how many network cards a host has, as in "8 x 400 Gb/s, rail-optimized". Rank i of a
            host has card i modulo `rails`. A message to a rank with another card first goes through
            NVLink to a rank that has the receiver's, which NCCL calls PXN. With twice as many cards
            as the largest host has ranks, a collective of NCCL's uses two for each rank. None: one
            port for all.
        leaf: how many hosts are below one leaf switch (top of rack), or in one pod; None: all
            traffic between hosts goes above it.
        oversubscription: how many times less bandwidth the network has above the leaf switches than
            below them. Llama 3 had "1:7" between pods of 3,072 GPUs: leaf=384, oversubscription=7.
        spread: the standard deviation of the speed of hosts' links, as a share of the speed: the
            more hosts a collective has, the slower the slowest, which sets its pace; for `predict`.
            With 0.08, rings of 4 to 128 hosts of H100 are within 6 % of what
            github.com/NVIDIA/nccl/issues/1229 reports.
        nccl: the generation of NVIDIA's GPUs, one of NCCL_GENERATIONS. `predict` then chooses
            algorithms (ring, tree, NVLS, PAT) and protocols (LL, LL128, Simple) as NCCL does, and
            counts what they reach of the links' nominal bandwidth. None: the formulas of
            `algorithms`, on links that reach all of it. A simulated cluster has those either way.
            Without hosts, NVLink joins all ranks.
        device: how long computing takes.
        name: for pictures and tables; made from the links if it is "".
        handshake: whether it takes a latency until a sender knows its receiver is ready; see
            simulation.py.
        algorithms: {"all_reduce": one of ALL_REDUCE}. "auto" takes the faster of ring and tree, by
            their formulas, as NCCL does.
        stragglers: by rank, how many times longer its computing takes.

    Attributes:
        latency, bandwidth, hosts, rails, leaf, oversubscription, spread, nccl, device, name,
        handshake, algorithms, stragglers: as given.
        inside: the link in a host; without hosts, the link between any two ranks.
        between: the link between hosts; None without hosts.

    Raises:
        ArgumentError: an argument breaks its rule.
    """

    latency: float | str | None
    bandwidth: float | str | None
    hosts: Sequence[int]
    inside: Link
    between: Link | None
    rails: int | None
    leaf: int | None
    oversubscription: float
    spread: float
    nccl: str | None
    device: Device | None
    name: str
    handshake: bool
    algorithms: Mapping[str, str]
    stragglers: Mapping[int, float]

    def __init__(
        self,
        latency: float | str | None = None,
        bandwidth: float | str | None = None,
        *,
        hosts: Sequence[int] = (),
        inside: Link | None = None,
        between: Link | None = None,
        rails: int | None = None,
        leaf: int | None = None,
        oversubscription: float = 1.0,
        spread: float = 0.0,
        nccl: str | None = None,
        device: Device | None = None,
        name: str = "",
        handshake: bool = False,
        algorithms: Mapping[str, str] | None = None,
        stragglers: Mapping[int, float] | None = None,
    ) -> None:
        algorithms = {} if algorithms is None else algorithms
        stragglers = {} if stragglers is None else stragglers
        _check_links(latency, bandwidth, hosts, inside, between)
        _check_above_hosts(hosts, rails, leaf, oversubscription, spread)
        if nccl is not None:
            one_of("nccl", nccl, NCCL_GENERATIONS, 'For example: nccl="Hopper".')
        if latency is not None and bandwidth is not None:
            inside = Link(latency, bandwidth)
        if device is not None:
            instance("device", device, Device, 'Give device=Device("10 TFLOP/s").')
        for collective, algorithm in algorithms.items():
            one_of("algorithms", collective, ["all_reduce"])
            one_of("algorithms['all_reduce']", algorithm, ALL_REDUCE)
        for rank, factor in stragglers.items():
            quantity(f"stragglers[{rank!r}]", factor, NO_UNIT, "2")
        set_frozen(
            self,
            latency=latency,
            bandwidth=bandwidth,
            hosts=hosts,
            inside=inside,
            between=between,
            rails=rails,
            leaf=leaf,
            oversubscription=float(oversubscription),
            spread=share_below_1("spread", spread),
            nccl=nccl,
            device=device,
            name=name,
            handshake=handshake,
            algorithms=algorithms,
            stragglers=stragglers,
        )

    @classmethod
    def named(cls, name: str, **others: Any) -> Network:
        """One of NETWORKS, with any other arguments of Network changed.

        Where each rank has its own network card, a host of fewer ranks has fewer cards.

        Raises:
            ArgumentError: no such name.
        """
        known = one_of("name", name, NETWORKS, 'Call Network.named("InfiniBand NDR").')
        network = replace(NETWORKS[known], **others)
        if "rails" in others or network.rails is None:
            return network
        return replace(network, rails=min(network.rails, max(network.hosts)))

    def __str__(self) -> str:
        if self.name:
            return self.name
        if not self.hosts:
            return str(self.inside)
        cards = ""
        if self.rails is not None:
            cards = f"{self.rails} x "
        return f"{self._hosts_in_words()}; inside {self.inside}; between {cards}{self.between}"

    def _hosts_in_words(self) -> str:
        """The hosts by their sizes; many of one size are counted."""
        are_alike = len({*self.hosts}) == 1
        if are_alike and len(self.hosts) > MOST_HOSTS_LISTED:
            return f"{len(self.hosts)} hosts of {self.hosts[0]}"
        sizes = ", ".join(map(str, self.hosts))
        return f"hosts of {sizes}"

    def check_size(self, n: int) -> None:
        """Refuse a network whose hosts do not have `n` ranks, or whose stragglers are others."""
        size = sum(self.hosts)
        if self.hosts and size != n:
            advice = f"Call Cluster({size}, network=...), or describe other hosts."
            refuse("network", f"of {n} ranks, like the cluster", list(self.hosts), advice)
        if any(rank not in range(n) for rank in self.stragglers):
            rule = f"ranks from 0 to {n - 1}"
            refuse("stragglers", rule, dict(self.stragglers), "Give stragglers={1: 2.0}.")

    def host_of(self, rank: int) -> int:
        """The number of the host that a rank is on."""
        first_after = list(itertools.accumulate(self.hosts))  # by host, the first rank behind it
        return bisect.bisect(first_after, rank)

    def path(self, src: int, dst: int) -> tuple[Link, Hashable, Hashable]:
        """What a message from src to dst goes through: its link, and the ports at the two ends."""
        here = self.host_of(src)
        there = self.host_of(dst)
        if here == there or self.between is None:
            return self.inside, ("rank out", src), ("rank in", dst)
        link = self.between
        if self.oversubscription > 1 and self.leaf_of(src) != self.leaf_of(dst):
            # as if all hosts send at the same time
            link = Link(link.latency, link.bandwidth / self.oversubscription)
        if self.rails is None:
            return link, ("host out", here), ("host in", there)
        card = self.rail_of(dst)
        return link, ("card out", here, card), ("card in", there, card)

    def rail_of(self, rank: int) -> int:
        """The number of a rank's network card in its host; 0 without `rails`."""
        if self.rails is None:
            return 0
        first_of_host = sum(self.hosts[: self.host_of(rank)])
        return (rank - first_of_host) % self.rails

    def leaf_of(self, rank: int) -> int:
        """The number of the leaf switch above a rank's host; of the host itself without `leaf`."""
        host = self.host_of(rank)
        if self.leaf is None:
            return host
        return host // self.leaf


def _check_links(
    latency: object, bandwidth: object, hosts: Sequence[int], inside: object, between: object
) -> None:
    """Refuse a network whose links are described in neither or in both of the two ways."""
    example = "For example: hosts=[4, 4]."
    if not isinstance(hosts, Sequence):
        refuse("hosts", "a list of numbers of ranks", hosts, example, wrong_type=True)
    flat = latency is not None and bandwidth is not None
    if flat == bool(hosts):
        calls = (
            'Call Network("5 us", "25 GB/s"), or '
            "Network(hosts=[4, 4], inside=Link(...), between=Link(...))."
        )
        rule = "described by latency and bandwidth, or by hosts"
        refuse("Network", rule, (latency, hosts), calls)
    for size in hosts:
        whole_number("hosts", size, 1, advice=example)
    if hosts:
        instance("inside", inside, Link, 'Give inside=Link("2 us", "300 GB/s").')
        instance("between", between, Link, 'Give between=Link("2 us", "300 GB/s").')
    elif between is not None:
        wrong("between= needs hosts= and inside=: without hosts there is one link between any two.")


def _check_above_hosts(
    hosts: Sequence[int],
    rails: int | None,
    leaf: int | None,
    oversubscription: float,
    spread: float,
) -> None:
    """Refuse cards and switches that are wrong, or that no hosts are there for."""
    share_below_1("spread", spread)
    if rails is not None:
        whole_number("rails", rails, 1, advice="For example: rails=8.")
    if leaf is not None:
        whole_number("leaf", leaf, 1, advice="For example: leaf=32.")
    quantity("oversubscription", oversubscription, NO_UNIT, "2")
    if oversubscription < 1:
        refuse(
            "oversubscription", "1 or more", oversubscription, "For example: oversubscription=2.0."
        )
    is_of_hosts = rails is not None or leaf is not None or oversubscription > 1 or spread > 0
    if is_of_hosts and not hosts:
        wrong("rails=, leaf=, oversubscription= and spread= need hosts=, inside= and between=.")


def _hosts_of_nvidia(
    name: str, ranks: int, nvlink: str, cards: int, card: str, generation: str
) -> Network:
    """One host of a data sheet, or one rack with a common NVLink; named() takes more of them."""
    return Network(
        hosts=[ranks],
        inside=Link("0.6 us", nvlink),
        between=Link("2.7 us", card),
        rails=cards,
        nccl=generation,
        name=name,
    )


# Bandwidth is the link's rate in each direction. Latency is that of a short message between two
# programs: through the kernel's TCP 10 to 30 us one way; the others are those that NCCL counts for
# a step of a ring in its LL protocol (src/graph/tuning.cc, hwLatencies). NVLink: 18 links of 25
# GB/s each way, from the data sheet of the H100.
NETWORKS = {
    "gigabit Ethernet": Network("30 us", "1 Gb/s", name="gigabit Ethernet"),
    "100 Gb/s Ethernet": Network("20 us", "100 Gb/s", name="100 Gb/s Ethernet"),
    "InfiniBand NDR": Network("2.7 us", "400 Gb/s", name="InfiniBand NDR"),
    "NVLink host": Network("0.6 us", "450 GB/s", name="NVLink host"),
    # NVIDIA's data sheets and user guides of DGX A100, DGX H100, DGX B200, GB200 NVL72 and GB300
    # NVL72: NVLink's bandwidth there is that of both directions together (600, 900, 1,800 GB/s).
    # Each B300 has a ConnectX-8 card
    # (docs.nvidia.com/enterprise-reference-architectures/nvl72-ai-factory, "Components").
    "A100 hosts": _hosts_of_nvidia("A100 hosts", 8, "300 GB/s", 8, "200 Gb/s", "Ampere"),
    "H100 hosts": _hosts_of_nvidia("H100 hosts", 8, "450 GB/s", 8, "400 Gb/s", "Hopper"),
    "B200 hosts": _hosts_of_nvidia("B200 hosts", 8, "900 GB/s", 8, "400 Gb/s", "Blackwell"),
    "B300 hosts": _hosts_of_nvidia("B300 hosts", 8, "900 GB/s", 8, "800 Gb/s", "Blackwell"),
    "GB200 NVL72": _hosts_of_nvidia("GB200 NVL72", 72, "900 GB/s", 72, "400 Gb/s", "Blackwell"),
    "GB300 NVL72": _hosts_of_nvidia("GB300 NVL72", 72, "900 GB/s", 72, "800 Gb/s", "Blackwell"),
}
