"""The description of machines that are not there: links, hosts, and the devices that compute.

Made in the notebook, sent to the ranks; runs anywhere and needs neither torch nor a cluster.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from distlab.arguments import (
    BYTES_PER_SECOND,
    PREFIXES,
    SECONDS,
    instance,
    one_of,
    quantity,
    refuse,
    whole_number,
)

MOST_LISTED = 3  # hosts
ALL_REDUCE = (
    "auto",
    "ring",
    "tree",
    "naive",
    "halving doubling",
    "recursive doubling",
    "whole ring",
)


@dataclass(frozen=True)
class Link:
    """What a message travels over: it arrives after `latency`, and occupies a port for its bytes /
    `bandwidth`.

    Args:
        latency: seconds, or a text such as "5 us".
        bandwidth: bytes a second in each direction, or a text such as "25 GB/s" or "100 Gb/s".

    Raises:
        ArgumentError: not such a number or text.
    """

    latency: float | str
    bandwidth: float | str

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "latency", quantity("latency", self.latency, SECONDS, "5 us", zero=True)
        )
        object.__setattr__(
            self, "bandwidth", quantity("bandwidth", self.bandwidth, BYTES_PER_SECOND, "25 GB/s")
        )

    def __str__(self) -> str:
        return f"{_short(self.latency)}s, {_short(self.bandwidth)}B/s"


@dataclass(frozen=True)
class Device:
    """How long computing takes on a rank; without a device it takes no time.

    Args:
        flops: floating-point operations a second, or a text such as "10 TFLOP/s": operations are
            counted as torch's FlopCounterMode counts them (matrix products, convolutions,
            attention), and elementwise ones cost nothing on a simulated cluster.
        memory_bandwidth: bytes a second, or a text such as "3.35 TB/s"; for `predict`, where each
            operator takes as long as its operations or its bytes need. None: bytes cost nothing.
        memory: bytes, or a text such as "80 GB"; None if it is not known.
        efficiency: the share of `flops` that matrix products reach, above 0 and up to 1.
        contention: the share of its speed that computing loses while messages travel, because the
            same device sends them; for `predict`.
        spread: the standard deviation of such devices' speeds, as a share of the speed: the more
            ranks, the slower the slowest of them, which the others wait for; for `predict`.

    Raises:
        ArgumentError: not such a number or text.
    """

    flops: float | str
    _: KW_ONLY
    memory_bandwidth: float | str | None = None
    memory: float | str | None = None
    efficiency: float = 1.0
    contention: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        units = {"flops": ({"FLOP/s": 1.0}, "10 TFLOP/s"), "efficiency": ({"": 1.0}, "0.5")}
        units |= {
            "memory_bandwidth": (BYTES_PER_SECOND, "3.35 TB/s"),
            "memory": ({"B": 1.0}, "80 GB"),
        }
        for name, (unit, example) in units.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, quantity(name, getattr(self, name), unit, example))
        if self.efficiency > 1:
            refuse(
                "efficiency", "above 0 and up to 1", self.efficiency, "For example: efficiency=0.5."
            )
        for name in ("contention", "spread"):
            value = quantity(name, getattr(self, name), {"": 1.0}, "0.1", zero=True)
            object.__setattr__(self, name, value)
            if value >= 1:
                refuse(name, "at least 0 and below 1", value, f"For example: {name}=0.1.")

    def seconds(self, flops: float, num_bytes: float = 0.0) -> float:
        """How long an operator takes: as long as its operations or its bytes need, whichever is
        longer.
        """
        moving = num_bytes / self.memory_bandwidth if self.memory_bandwidth else 0.0
        return max(flops / (self.flops * self.efficiency), moving)


@dataclass(frozen=True)
class Network:
    """Links between ranks, for Cluster(n, network=...).

        Network("5 us", "25 GB/s")                   # every rank has a full-duplex port of 25 GB/s
        Network(hosts=[4, 4], inside=Link("2 us", "300 GB/s"), between=Link("10 us", "12.5 GB/s"))
        Network.named("100 Gb/s Ethernet")

    Ranks are numbered host by host. Inside a host each rank has its own port; all messages that
    leave or enter the host share its one port.

    Args:
        latency, bandwidth: of the link between any two ranks, as for `Link`.
        hosts: numbers of ranks by host. inside, between: the links in a host, and between hosts.
        device: how long computing takes. name: for pictures and tables; made from the links if it
            is "".
        handshake: whether it takes a latency until a sender knows its receiver is ready; see
            simulation.py.
        algorithms: {"all_reduce": one of ALL_REDUCE}. "auto" takes the faster of ring and tree, by
            their formulas, as NCCL does.
        stragglers: by rank, how many times longer its computing takes.

    Raises:
        ArgumentError: an argument breaks its rule.
    """

    latency: float | str | None = None
    bandwidth: float | str | None = None
    _: KW_ONLY
    hosts: Sequence[int] = ()
    inside: Link | None = None
    between: Link | None = None
    device: Device | None = None
    name: str = ""
    handshake: bool = False
    algorithms: Mapping[str, str] = field(default_factory=dict)
    stragglers: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        example = 'Call Network("5 us", "25 GB/s"), or Network(hosts=[4, 4], inside=Link(...), between=Link(...)).'
        flat = self.latency is not None and self.bandwidth is not None
        if flat == bool(self.hosts):
            refuse(
                "Network",
                "described by latency and bandwidth, or by hosts",
                (self.latency, self.hosts),
                example,
            )
        if flat:
            object.__setattr__(self, "inside", Link(self.latency, self.bandwidth))
        for n in self.hosts:
            whole_number("hosts", n, 1, advice="For example: hosts=[4, 4].")
        for name in ("inside", "between") if self.hosts else ():
            instance(name, getattr(self, name), Link, f'Give {name}=Link("2 us", "300 GB/s").')
        if self.device is not None:
            instance("device", self.device, Device, 'Give device=Device("10 TFLOP/s").')
        for collective, algorithm in self.algorithms.items():
            one_of("algorithms", collective, ["all_reduce"])
            one_of("algorithms['all_reduce']", algorithm, ALL_REDUCE)
        for rank, factor in self.stragglers.items():
            quantity(f"stragglers[{rank!r}]", factor, {"": 1.0}, "2")

    @classmethod
    def named(cls, name: str, **others: Any) -> Network:
        """One of NETWORKS, with any other arguments of Network changed.

        Raises:
            ArgumentError: no such name.
        """
        return replace(
            NETWORKS[one_of("name", name, NETWORKS, 'Call Network.named("InfiniBand NDR").')],
            **others,
        )

    def __str__(self) -> str:
        if self.name:
            return self.name
        if not self.hosts:
            return str(self.inside)
        sizes = f"hosts of {', '.join(map(str, self.hosts))}"
        if len(self.hosts) > MOST_LISTED and len({*self.hosts}) == 1:
            sizes = f"{len(self.hosts)} hosts of {self.hosts[0]}"
        return f"{sizes}; inside {self.inside}; between {self.between}"

    def check_size(self, n: int) -> None:
        """Check that the hosts have as many ranks as the cluster, and that stragglers are among
        them.
        """
        if self.hosts and sum(self.hosts) != n:
            advice = f"Call Cluster({sum(self.hosts)}, network=...), or describe other hosts."
            refuse("network", f"of {n} ranks, like the cluster", list(self.hosts), advice)
        if any(rank not in range(n) for rank in self.stragglers):
            refuse(
                "stragglers",
                f"ranks from 0 to {n - 1}",
                dict(self.stragglers),
                "Give stragglers={1: 2.0}.",
            )

    def host_of(self, rank: int) -> int:
        """The number of the host that a rank is on."""
        return bisect.bisect(list(itertools.accumulate(self.hosts)), rank)

    def path(self, src: int, dst: int) -> tuple[Link, Hashable, Hashable]:
        """What a message from src to dst goes through: a link, the port at its beginning, and the
        one at its end.
        """
        here, there = self.host_of(src), self.host_of(dst)
        if here == there:
            return self.inside, ("rank out", src), ("rank in", dst)
        return self.between, ("host out", here), ("host in", there)


def _short(value: float) -> str:
    """A number with its prefix: "5 u", "12.5 G"."""
    prefix = next(
        (
            p
            for p, power in reversed(PREFIXES.items())
            if p != "u" and value >= 0.9999 * 10.0**power
        ),
        "",
    )
    return f"{value / 10.0 ** PREFIXES[prefix]:.4g} {prefix}"


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
