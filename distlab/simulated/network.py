"""The description of machines that are not there: links and hosts; devices.py has what computes.

Made in the notebook, sent to the ranks; runs anywhere and needs neither torch nor a cluster.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distlab.arguments import (
    BYTES_PER_SECOND,
    NO_UNIT,
    PREFIXES,
    SECONDS,
    instance,
    one_of,
    quantity,
    refuse,
    whole_number,
)
from distlab.simulated.devices import Device as Device
from distlab.simulated.devices import set_frozen

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
class Link:
    """What a message travels over.

    A message arrives `latency` after it has left, and holds a port for its bytes / `bandwidth`.

    Args:
        latency: seconds, or a text such as "5 us".
        bandwidth: bytes a second in each direction, or a text such as "25 GB/s" or "100 Gb/s".

    Attributes:
        latency: in seconds.
        bandwidth: in bytes a second.

    Raises:
        ArgumentError: not such a number or text.
    """

    latency: float
    bandwidth: float

    def __init__(self, latency: float | str, bandwidth: float | str) -> None:
        set_frozen(
            self,
            latency=quantity("latency", latency, SECONDS, "5 us", zero=True),
            bandwidth=quantity("bandwidth", bandwidth, BYTES_PER_SECOND, "25 GB/s"),
        )

    def __str__(self) -> str:
        return f"{_short(self.latency)}s, {_short(self.bandwidth)}B/s"


@dataclass(frozen=True, init=False)
class Network:
    """Links between ranks, for Cluster(n, network=...).

        Network("5 us", "25 GB/s")                   # every rank has a full-duplex port of 25 GB/s
        Network(hosts=[4, 4], inside=Link("2 us", "300 GB/s"), between=Link("10 us", "12.5 GB/s"))
        Network.named("100 Gb/s Ethernet")

    Ranks are numbered host by host. Inside a host each rank has its own port; all messages that
    leave or enter the host share its one port.

    Args:
        latency, bandwidth: of the link between any two ranks, as for `Link`.
        hosts: numbers of ranks by host.
        inside: the link in a host.
        between: the link between hosts.
        device: how long computing takes.
        name: for pictures and tables; made from the links if it is "".
        handshake: whether it takes a latency until a sender knows its receiver is ready; see
            simulation.py.
        algorithms: {"all_reduce": one of ALL_REDUCE}. "auto" takes the faster of ring and tree, by
            their formulas, as NCCL does.
        stragglers: by rank, how many times longer its computing takes.

    Attributes:
        latency, bandwidth, hosts, device, name, handshake, algorithms, stragglers: as given.
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
        device: Device | None = None,
        name: str = "",
        handshake: bool = False,
        algorithms: Mapping[str, str] | None = None,
        stragglers: Mapping[int, float] | None = None,
    ) -> None:
        algorithms = {} if algorithms is None else algorithms
        stragglers = {} if stragglers is None else stragglers
        _check_links(latency, bandwidth, hosts, inside, between)
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
            device=device,
            name=name,
            handshake=handshake,
            algorithms=algorithms,
            stragglers=stragglers,
        )

    @classmethod
    def named(cls, name: str, **others: Any) -> Network:
        """One of NETWORKS, with any other arguments of Network changed.

        Raises:
            ArgumentError: no such name.
        """
        known = one_of("name", name, NETWORKS, 'Call Network.named("InfiniBand NDR").')
        return replace(NETWORKS[known], **others)

    def __str__(self) -> str:
        if self.name:
            return self.name
        if not self.hosts:
            return str(self.inside)
        return f"{self._hosts_in_words()}; inside {self.inside}; between {self.between}"

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
        return self.between, ("host out", here), ("host in", there)


def _check_links(
    latency: object, bandwidth: object, hosts: Sequence[int], inside: object, between: object
) -> None:
    """Refuse a network whose links are described in neither or in both of the two ways."""
    flat = latency is not None and bandwidth is not None
    if flat == bool(hosts):
        example = (
            'Call Network("5 us", "25 GB/s"), or '
            "Network(hosts=[4, 4], inside=Link(...), between=Link(...))."
        )
        rule = "described by latency and bandwidth, or by hosts"
        refuse("Network", rule, (latency, hosts), example)
    for size in hosts:
        whole_number("hosts", size, 1, advice="For example: hosts=[4, 4].")
    if hosts:
        instance("inside", inside, Link, 'Give inside=Link("2 us", "300 GB/s").')
        instance("between", between, Link, 'Give between=Link("2 us", "300 GB/s").')


def _short(value: float) -> str:
    """A number with its prefix: "5 u", "12.5 G"."""
    chosen = ""
    for prefix, power in reversed(PREFIXES.items()):
        is_large_enough = value >= 0.9999 * 10.0**power  # what rounding shows as 1
        if prefix != "u" and is_large_enough:  # "µ" is the same
            chosen = prefix
            break
    return f"{value / 10.0 ** PREFIXES[chosen]:.4g} {chosen}"


# Bandwidth is the link's rate in each direction. Latency is that of a short message between two
# programs: through the kernel's TCP 10 to 30 us one way; the others are those that NCCL counts for
# a step of a ring in its LL protocol (src/graph/tuning.cc, hwLatencies). NVLink: 18 links of 25
# GB/s each way, from the data sheet of the H100.
NETWORKS = {
    "gigabit Ethernet": Network("30 us", "1 Gb/s", name="gigabit Ethernet"),
    "100 Gb/s Ethernet": Network("20 us", "100 Gb/s", name="100 Gb/s Ethernet"),
    "InfiniBand NDR": Network("2.7 us", "400 Gb/s", name="InfiniBand NDR"),
    "NVLink host": Network("0.6 us", "450 GB/s", name="NVLink host"),
}
