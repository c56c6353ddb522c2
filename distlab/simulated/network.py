"""The description of machines that are not there: links, hosts, and the devices that compute.

Made in the notebook, sent to the ranks; runs anywhere and needs neither torch nor a cluster.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple

from distlab.text import BYTES_PER_SECOND, PREFIXES, SECONDS, quantity, refuse

ALGORITHMS = {
    "all_reduce": ("auto", "ring", "tree", "naive", "halving doubling", "recursive doubling", "whole ring"),
    "broadcast": ("tree", "linear"),
    "reduce": ("tree", "linear"),
}


@dataclass(frozen=True)
class Link:
    """What a message travels over: it arrives after `latency`, and occupies a port for its bytes / `bandwidth`.

    Args:
        latency: seconds, or a text such as "5 us".
        bandwidth: bytes a second in each direction, or a text such as "25 GB/s" or "100 Gb/s".

    Raises:
        ArgumentError: not such a number or text.
    """

    latency: float | str
    bandwidth: float | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "latency", quantity("latency", self.latency, SECONDS, "5 us", zero=True))
        object.__setattr__(self, "bandwidth", quantity("bandwidth", self.bandwidth, BYTES_PER_SECOND, "25 GB/s"))

    def __str__(self) -> str:
        return f"{_short(self.latency)}s, {_short(self.bandwidth)}B/s"


@dataclass(frozen=True)
class Device:
    """How long computing takes on a rank; without one it takes no time.

    Args:
        flops: floating-point operations a second, or a text such as "10 TFLOP/s": operations are counted as torch's
            FlopCounterMode counts them (matrix products, convolutions, attention), and elementwise ones cost nothing.
        cpu: instead of counting: virtual seconds for each second of CPU time on this machine; not the same on every
            run.

    Raises:
        ArgumentError: not such a number or text, or both.
    """

    flops: float | str | None = None
    cpu: float | None = None

    def __post_init__(self) -> None:
        if (self.flops is None) == (self.cpu is None):
            refuse("Device", "either flops or cpu", (self.flops, self.cpu), 'Call Device(flops="10 TFLOP/s").')
        for name, units, example in (("flops", {"FLOP/s": 1.0}, "10 TFLOP/s"), ("cpu", {"": 1.0}, "1")):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, quantity(name, getattr(self, name), units, example))


class Path(NamedTuple):
    """What a message from one rank to another goes through: seconds of latency, seconds a byte, and the two ports."""

    latency: float
    seconds_per_byte: float
    out: Hashable
    into: Hashable


@dataclass(frozen=True)
class Network:
    """Links between ranks, for Cluster(n, network=...).

        Network("5 us", "25 GB/s")                   # every rank has a full-duplex port of 25 GB/s
        Network(hosts=[4, 4], inside=Link("2 us", "300 GB/s"), between=Link("10 us", "12.5 GB/s"))
        Network.named("100 Gb/s Ethernet")

    Ranks are numbered host by host. Inside of a host each rank has a port of its own; the messages that leave or enter
    a host share its one port there.

    Args:
        latency, bandwidth: of the link between any two ranks, as for `Link`.
        hosts: ranks by host. inside, between: the links in a host, and between hosts.
        device: how long computing takes. name: for pictures and tables; made from the links when it is "".
        handshake: whether a sender learns only after a latency that its receiver is there; see simulation.py.
        eager: bytes up to which a message leaves before its receiver waits for it; gloo's 0 is the default.
        algorithms: the algorithm of each collective, one of ALGORITHMS. "auto" takes ring or tree, whichever its
            formula says is quicker, as NCCL does.
        jitter: each message's latency grows by a random share of itself, at most this one. stragglers: by rank, how
            many times longer it computes. seed: of the random shares, which are the same on every run.

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
    eager: int = 0
    algorithms: Mapping[str, str] = field(default_factory=dict)
    jitter: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        example = 'Call Network("5 us", "25 GB/s"), or Network(hosts=[4, 4], inside=Link(...), between=Link(...)).'
        flat = self.latency is not None and self.bandwidth is not None
        if flat == bool(self.hosts):
            refuse("Network", "described by latency and bandwidth, or by hosts", (self.latency, self.hosts), example)
        if flat:
            object.__setattr__(self, "inside", Link(self.latency, self.bandwidth))
        elif not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in self.hosts):
            refuse("hosts", "a list of whole numbers of ranks above 0", self.hosts, "Give for example hosts=[4, 4].")
        for name in ("inside", "between") if self.hosts else ():
            if not isinstance(getattr(self, name), Link):
                refuse(name, "a Link", getattr(self, name), f'Give {name}=Link("2 us", "300 GB/s").', wrong_type=True)
        if self.device is not None and not isinstance(self.device, Device):
            advice = 'Give device=Device(flops="10 TFLOP/s").'
            refuse("device", "a Device", self.device, advice, wrong_type=True)
        for collective, algorithm in self.algorithms.items():
            if algorithm not in ALGORITHMS.get(collective, ()):
                known = ", ".join(ALGORITHMS.get(collective, ALGORITHMS))
                advice = 'Give for example algorithms={"all_reduce": "ring"}.'
                refuse(f"algorithms[{collective!r}]", f"one of {known}", algorithm, advice)
        quantity("eager", self.eager, {"B": 1.0}, "0", zero=True)
        quantity("jitter", self.jitter, {"": 1.0}, "0.1", zero=True)
        for rank, factor in self.stragglers.items():
            quantity(f"stragglers[{rank!r}]", factor, {"": 1.0}, "2")

    @classmethod
    def named(cls, name: str, **others: Any) -> Network:
        """One of NETWORKS, with other arguments of Network where they are given.

        Raises:
            ArgumentError: no such name.
        """
        if name not in NETWORKS:
            refuse("name", f"one of {', '.join(map(repr, NETWORKS))}", name, 'Call Network.named("InfiniBand NDR").')
        return replace(NETWORKS[name], **others)

    def __str__(self) -> str:
        if self.name:
            return self.name
        if not self.hosts:
            return str(self.inside)
        return f"hosts of {', '.join(map(str, self.hosts))}; inside {self.inside}; between {self.between}"

    def check_size(self, n: int) -> None:
        """The hosts have as many ranks as the cluster, and stragglers are among them."""
        if self.hosts and sum(self.hosts) != n:
            advice = f"Call Cluster({sum(self.hosts)}, network=...), or describe other hosts."
            refuse("network", f"of {n} ranks, as the cluster", list(self.hosts), advice)
        if any(rank not in range(n) for rank in self.stragglers):
            refuse("stragglers", f"ranks from 0 to {n - 1}", dict(self.stragglers), "Give stragglers={1: 2.0}.")

    def host_of(self, rank: int) -> int:
        """The number of the host that a rank is on."""
        return bisect.bisect(list(itertools.accumulate(self.hosts)), rank)

    def path(self, src: int, dst: int) -> Path:
        """What a message from src to dst goes through."""
        here, there = self.host_of(src), self.host_of(dst)
        if here == there:
            return Path(self.inside.latency, 1 / self.inside.bandwidth, ("rank out", src), ("rank in", dst))
        return Path(self.between.latency, 1 / self.between.bandwidth, ("host out", here), ("host in", there))

    def late(self, src: int, dst: int, count: int) -> float:
        """The factor by which the latency of the count-th message from src to dst is longer."""
        if not self.jitter:
            return 1.0
        return 1.0 + self.jitter * random.Random(f"{self.seed} {src} {dst} {count}").random()


def _short(value: float) -> str:
    """A number with its prefix: "5 u", "12.5 G"."""
    prefix = next((p for p, power in reversed(PREFIXES.items()) if p != "u" and value >= 0.9999 * 10.0**power), "")
    return f"{value / 10.0 ** PREFIXES[prefix]:.4g} {prefix}"


# Bandwidth is the link's rate in each direction. Latency is that of a short message between two programs:
# through the kernel's TCP 10 to 30 us one way; the others are those that NCCL counts for a step of a ring in its LL
# protocol (src/graph/tuning.cc, hwLatencies). NVLink: 18 links of 25 GB/s each way, from the data sheet of the H100.
NETWORKS = {
    "gigabit Ethernet": Network("30 us", "1 Gb/s", name="gigabit Ethernet"),
    "100 Gb/s Ethernet": Network("20 us", "100 Gb/s", name="100 Gb/s Ethernet"),
    "InfiniBand NDR": Network("2.7 us", "400 Gb/s", name="InfiniBand NDR"),
    "NVLink host": Network("0.6 us", "450 GB/s", name="NVLink host"),
}
