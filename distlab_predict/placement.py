"""Where the ranks of a group are, and what a network has for them. Pure functions.

Called by costs.py, in the notebook's process. Ranks of a host that belong to other groups do the
same at the same time, so a group has the share of its host's port, or of its cards, that it has of
its ranks. Groups in all hosts send above the leaf switches at the same time.
"""

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

from distlab.simulated.network import Network


class Placement(NamedTuple):
    """Where the ranks of a group are.

    Attributes:
        ranks: how many.
        hosts: the host of each.
        between: bytes a second that its ranks of a host have to other hosts, all together; 0 if
            they are on one host.
        cards: how many network cards its ranks of a host have for it.
        left_around: the share of it that is left to a ring or a tree, whose neighbours are mostly
            below the same leaf switch, and which goes at the pace of the slowest host.
        left_to_all: the share that is left where each rank sends to all others.
    """

    ranks: int
    hosts: tuple[int, ...]
    between: float
    cards: float
    left_around: float
    left_to_all: float

    @property
    def number_of_hosts(self) -> int:
        """How many hosts it is on."""
        return len(set(self.hosts))


def placement_of(members: Sequence[int], network: Network) -> Placement:
    """Where the ranks of a group are, and what the network has for them."""
    first_after = list(itertools.accumulate(network.hosts))
    hosts = tuple(bisect.bisect(first_after, rank) for rank in members)
    there = Counter(hosts)
    number = len(there)
    if number == 1 or network.between is None:
        return Placement(len(members), hosts, 0.0, 1.0, 1.0, 1.0)
    cards = min(
        _cards_of(members_here, network.hosts[host], network)
        for host, members_here in there.items()
    )
    between = cards * network.between.bandwidth
    slowest = slowest_of(number, network.spread)
    around, to_all = _above_leaves(sorted(there), network)
    return Placement(
        len(members),
        hosts,
        between,
        max(1.0, cards),
        1 / (max(1.0, around * network.oversubscription) * slowest),
        1 / (max(1.0, to_all * network.oversubscription) * slowest),
    )


def _cards_of(members: int, ranks: int, network: Network) -> float:
    """How many network cards of a host are left to a group, which may be a part of one.

    Args:
        members: of the group on this host.
        ranks: of the host.
        network: of the hosts.
    """
    if network.rails is None:
        return members / ranks
    # of a host with fewer ranks than others, cards are idle as well
    of_a_rank = max(1, network.rails // max(network.hosts))
    return members / ranks * min(network.rails, of_a_rank * ranks)


def slowest_of(number: int, spread: float) -> float:
    """How many times longer the slowest of some devices or hosts needs than the usual one.

    One of `number` others is expected to be slower than that: it is a little less than the expected
    maximum of normal variables.

    Args:
        number: of them.
        spread: the standard deviation of their speeds, as a share.
    """
    return 1 + spread * NormalDist().inv_cdf(number / (number + 1))


def _above_leaves(hosts: Sequence[int], network: Network) -> tuple[float, float]:
    """Which shares of what hosts send goes above the leaf switches.

    Returns:
        Of what goes around a ring of the hosts, and of what each host sends to all others.
    """
    if network.leaf is None:
        return 1.0, 1.0
    leaves = [host // network.leaf for host in hosts]
    crossing = 0
    for here, there in zip(leaves, [*leaves[1:], leaves[0]], strict=True):
        crossing += here != there
    below = Counter(leaves)
    inside = sum(number * (number - 1) for number in below.values())
    pairs = len(hosts) * (len(hosts) - 1)
    return crossing / len(hosts), 1 - inside / pairs
