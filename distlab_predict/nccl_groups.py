"""Groups of ranks, and what NCCL knows of generations of GPUs: links, limits, channels.

Used by nccl_tuning.py and nccl.py, in the notebook's process. Pure functions. Numbers are those of
NCCL 2.30.7, src/graph/tuning.cc (tables from line 153) and src/graph/topo.h (bandwidth of a link of
NVLink). Units of limits are NCCL's own: GB/s.
"""

import math
from typing import NamedTuple


class Way(NamedTuple):
    """How NCCL runs a collective.

    Attributes:
        algorithm: "ring", "tree", "NVLS" (the switch of NVLink reduces and multiplies), "NVLS tree"
            (that in hosts, and a tree between them), or "PAT" (logarithmic, one rank in a host).
        protocol: "LL" (a flag with every 4 bytes), "LL128" (with every 120 bytes), or "Simple".
    """

    algorithm: str
    protocol: str


class Group(NamedTuple):
    """Where the ranks of a group are.

    Attributes:
        ranks: how many.
        hosts: on how many hosts, or domains of NVLink, in equal parts.
        inside: bytes a second of NVLink, from one rank, by the data sheet.
        between: bytes a second of all network cards that its ranks of a host use, by the data
            sheet; without other hosts, any number.
        latency: of a message between hosts, in seconds.
        cards: how many network cards these are.
        left: the share of `between` that it has, above switches that others use as well, or on its
            slowest host.
    """

    ranks: int
    hosts: int
    inside: float
    between: float = math.inf
    latency: float = 0.0
    cards: float = 1.0
    left: float = 1.0

    @property
    def in_host(self) -> float:
        """How many ranks each host has."""
        return self.ranks / self.hosts


class Generation(NamedTuple):
    """What NCCL knows of a generation of GPUs. Three numbers are for 1, 2 and more hosts.

    Attributes:
        link: the share of NVLink's bandwidth that a ring can have.
        channels: of a ring in a host, and the most that it has between hosts.
        shares_quick_cards: whether two searched channels share a card of 400 Gb/s or more, if there
            are few.
        nvls_channels: of NVLS in a host, and on several; 0 without NVLS.
        nvls: its efficiency.
        ll: the most that LL reaches.
        ring_ll128, tree_ll128, tree, nvls_tree: the most that a channel reaches.
    """

    link: float
    channels: int
    shares_quick_cards: bool
    nvls_channels: tuple[int, int]
    nvls: float
    ll: tuple[float, float, float]
    ring_ll128: float
    tree_ll128: tuple[float, float, float]
    tree: tuple[float, float, float]
    nvls_tree: tuple[float, float, float]


# 20, 20.6 and 40.1 of the 25, 25 and 50 GB/s of a link. Hosts of A100s have AMD's processors, which
# LL goes through between hosts, and the others Intel's.
GENERATIONS = {
    "Ampere": Generation(
        link=20 / 25,
        channels=24,
        shares_quick_cards=False,
        nvls_channels=(0, 0),
        nvls=0.0,
        ll=(87.7, 22.5, 19),
        ring_ll128=20,
        tree_ll128=(20, 20, 20),
        tree=(24, 23.6, 17.8),
        nvls_tree=(0, 0, 0),
    ),
    "Hopper": Generation(
        link=20.6 / 25,
        channels=24,
        shares_quick_cards=True,
        nvls_channels=(16, 16),
        nvls=0.85,
        ll=(141, 39, 20.4),
        ring_ll128=36.7,
        tree_ll128=(36.7, 36.7, 29),
        tree=(38.7, 41.4, 36),
        nvls_tree=(0, 57.7, 45.5),
    ),
    "Blackwell": Generation(
        link=40.1 / 50,
        channels=32,
        shares_quick_cards=True,
        nvls_channels=(24, 32),
        nvls=0.74,
        ll=(282, 39, 20.4),
        ring_ll128=40,
        tree_ll128=(55.6, 31.67, 20),
        tree=(70, 42.8, 24),
        nvls_tree=(0, 96, 80),
    ),
}
QUICK_CARD = 45e9  # bytes a second, as of cards of 400 Gb/s


def channels_of(way: Way, group: Group, generation: Generation) -> int:
    """How many channels a way has, each of which is a block of threads on a multiprocessor.

    They are twice those that NCCL has searched for (src/graph/connect.cc, ncclTopoPostset).
    """
    if way.algorithm.startswith("NVLS"):
        return generation.nvls_channels[group.hosts > 1]
    return min(generation.channels, 2 * searched(group, generation))


def searched(group: Group, generation: Generation) -> int:
    """How many channels NCCL finds in its search; what it knows of a channel is of these.

    Between hosts each has a card, and each of up to four quick cards has two (src/graph/search.cc,
    ncclTopoDupChannels). So have five to seven of them, although NCCL doubles those only later.
    """
    if group.hosts == 1:
        return generation.channels // 2
    cards = max(1, round(group.cards))
    are_quick = group.between / group.cards >= QUICK_CARD
    if generation.shares_quick_cards and are_quick and cards < 8:
        return 2 * cards
    return cards


def heads(group: Group) -> int:
    """How many ranks of a host gather what NVLS adds up: those that have a card, between hosts."""
    if group.hosts == 1:
        return group.ranks
    return round(min(group.cards, group.in_host))


def ring_over_nvlink(group: Group) -> float:
    """How much more a ring carries than each of its ranks sends by NVLink.

    Of as many channels as a host has ranks, a rank with a card of its own leaves the host on one.
    """
    if group.hosts == 1 or group.cards < group.in_host:
        return 1.0
    if group.hosts == group.ranks:
        return math.inf
    in_host = max(2.0, group.in_host)
    return in_host / (in_host - 1)
