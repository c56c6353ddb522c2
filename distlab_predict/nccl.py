"""How long a collective takes by NCCL, and by which algorithm and protocol. Pure functions.

Called by costs.py, in the notebook's process. NCCL chooses what it believes to be the quickest
(nccl_tuning.py). What that takes is the model of this file:

- starting takes a while, and so does each hop: more in a host with LL128 and Simple than with LL,
  and more between hosts, where a processor starts each message;
- bytes take what the narrowest link needs, of which a protocol reaches a share;
- NVLS works in chunks, which are small for small buffers, and a smaller chunk reaches less.

The numbers below were read off nccl-tests: those in a host of 8 A100 and 8 B200, those between
hosts of 16 and 32 H100 with InfiniBand, whose cards have 2.7 us of latency here. All others in
tests/unit/predict/published_nccl.py are beside them for comparison.
"""

import math
from typing import NamedTuple

from distlab_predict.nccl_groups import (
    GENERATIONS,
    Generation,
    Group,
    Way,
    channels_of,
    ring_over_nvlink,
)
from distlab_predict.nccl_tuning import believed

# in microseconds, by protocol
START = {"LL": 7.5, "LL128": 9.0, "Simple": 17.0}
START_BETWEEN = {"LL": 0.0, "LL128": 16.0, "Simple": 16.0}  # more, if there are several hosts
HOP_INSIDE = {"LL": 1.2, "LL128": 2.0, "Simple": 3.2}
HOP_OF_CHAIN = {"LL": 0.6, "LL128": 2.0, "Simple": 3.2}  # of a tree, in a host
# beside two latencies: the data, and the receiver's word that it has room for more
HOP_BETWEEN = {"LL": 0.0, "LL128": 0.0, "Simple": 8.0}
# of what a ring can have of NVLink: LL sends as many flags as data, and waits for each
INSIDE = {"LL": 0.4, "LL128": 0.735, "Simple": 0.96}
# Of network cards, by the data sheet: headers, and flags. Simple: an engineer of NVIDIA expects 46
# to 48 of 50 GB/s (github.com/NVIDIA/nccl-tests/issues/290). Rings on hosts with 4 cards of 25 GB/s
# had 93.5 to 95.1 GB/s (issues/252).
BETWEEN = {"LL": 0.4, "LL128": 0.9, "Simple": 0.94}
START_NVLS = 25.0
# Of network cards, in a tree of more than two hosts: 366 of 400 GB/s, "a good number", which more
# channels would raise to 380 at the cost of multiprocessors, says an engineer of NVIDIA in
# github.com/NVIDIA/nccl-tests/issues/309.
TREE_BETWEEN = 0.92
# of NVLink, by the data sheet, if chunks were endless
NVLS = {"Hopper": 0.64, "Blackwell": 0.63}
NVLS_BETWEEN = 0.94  # of it in a tree between hosts, as ranks also move what their cards carry
NVLS_OVERHEAD = {"Hopper": 8 << 10, "Blackwell": 21 << 10}  # of a chunk, in bytes
KIB = 1 << 10
# Grouped sends and receives. Up to 16 KiB in each of 32 channels they are by LL (src/enqueue.cc,
# P2P_LL_THRESHOLD).
START_MESSAGES = {"LL": 11.0, "Simple": 31.0}
HOP_MESSAGES = 20.0
MESSAGES = {"LL": 0.2, "Simple": 0.94}
MOST_BY_LL = 512 * KIB
# A copy engine that reads another rank's memory: 376 of NVLink's 450 GB/s beside an H100
# (github.com/NVIDIA/nccl/issues/1264). It begins behind a barrier of all ranks, whose time is a
# guess.
START_COPY_ENGINE = 10.0
COPY_ENGINE = 0.84


class Choice(NamedTuple):
    """How NCCL runs a collective, and what that takes.

    Attributes:
        algorithm, protocol: as of nccl_groups.Way.
        seconds: from its start to its end.
        moving: how many of them the bytes need on their narrowest link; the rest is latency.
        link: the narrowest, "inside" of a host or "between" hosts.
        busbw: in GB/s, as nccl-tests count it.
        channels: how many multiprocessors it occupies meanwhile.
    """

    algorithm: str
    protocol: str
    seconds: float
    moving: float
    link: str
    busbw: float
    channels: int


class _Spent(NamedTuple):
    """Microseconds, and the link on which the bytes are."""

    latency: float
    moving: float
    link: str


def choose(name: str, num_bytes: float, group: Group, generation: str) -> Choice:
    """How NCCL runs a collective on these ranks, and how long it takes.

    Args:
        name: "all_reduce", "all_gather", "reduce_scatter", "broadcast" or "reduce".
        num_bytes: of the whole buffer, as nccl-tests count it: what an all-gather has put together.
        group: of more than one rank.
        generation: one of nccl_groups.GENERATIONS.
    """
    times = believed(name, num_bytes, group, generation)
    way = min(times, key=lambda one: times[one])
    spent = _spent(name, num_bytes, way, group, generation)
    channels = channels_of(way, group, GENERATIONS[generation])
    return _choice(name, num_bytes, way, spent, group, channels)


def exchange(
    num_bytes_inside: float, num_bytes_between: float, messages: int, group: Group, generation: str
) -> Choice:
    """How long grouped sends and receives take, as of an all-to-all, and alone a single one.

    Args:
        num_bytes_inside: that a rank sends to others of its host.
        num_bytes_between: that it sends to other hosts, through its own card.
        messages: how many it sends.
        group: of the ranks.
        generation: one of nccl_groups.GENERATIONS.
    """
    num_bytes = num_bytes_inside + num_bytes_between
    protocol = "LL" if num_bytes <= MOST_BY_LL * messages else "Simple"
    ring = group.inside * GENERATIONS[generation].link
    inside = num_bytes_inside / (ring * MESSAGES[protocol]) * 1e6
    spent = _Spent(START_MESSAGES[protocol], inside, "inside")
    if num_bytes_between:
        of_a_rank = group.between * group.left / group.in_host
        between = num_bytes_between / (of_a_rank * BETWEEN["Simple"]) * 1e6
        latency = spent.latency + 2e6 * group.latency + HOP_MESSAGES
        if between > inside:
            spent = _Spent(latency, between, "between")
        else:
            spent = spent._replace(latency=latency)
    # channels for each of the others, and no more than there are
    channels = min(GENERATIONS[generation].channels, 2 * messages)
    way = Way("grouped messages", protocol)
    return _choice("all_to_all", num_bytes, way, spent, group, channels)


def fetch(num_bytes: float, group: Group) -> Choice:
    """How long a copy engine needs to fetch a part of a tensor from another rank of its host.

    Args:
        num_bytes: of the part.
        group: of the ranks.
    """
    moving = num_bytes / (group.inside * COPY_ENGINE) * 1e6
    spent = _Spent(START_COPY_ENGINE, moving, "inside")
    return _choice("fetch", num_bytes, Way("copy engine", "NVLink"), spent, group, 0)


def _choice(
    name: str, num_bytes: float, way: Way, spent: _Spent, group: Group, channels: int
) -> Choice:
    seconds = (spent.latency + spent.moving) / 1e6
    on_the_bus = num_bytes
    if name == "all_reduce":
        on_the_bus *= 2 * (group.ranks - 1) / group.ranks
    if name in ("all_gather", "reduce_scatter"):
        on_the_bus *= (group.ranks - 1) / group.ranks
    busbw = on_the_bus / seconds / 1e9
    return Choice(*way, seconds, spent.moving / 1e6, spent.link, busbw, channels)


def _spent(name: str, num_bytes: float, way: Way, group: Group, generation: str) -> _Spent:
    """What a way takes."""
    if way.algorithm == "ring":
        return _ring(name, num_bytes, way.protocol, group, GENERATIONS[generation])
    if way.algorithm == "tree":
        return _tree(num_bytes, way.protocol, group, GENERATIONS[generation])
    if way.algorithm == "PAT":
        return _pat(num_bytes, group)
    return _nvls(num_bytes, group, generation)


def _ring(
    name: str, num_bytes: float, protocol: str, group: Group, generation: Generation
) -> _Spent:
    """Around the ring once, or twice for an all-reduce; a broadcast goes along a chain."""
    around = 2 if name == "all_reduce" else 1
    steps = around * (group.ranks - 1)
    steps_between = 0
    if group.hosts > 1:
        # the last of the links between hosts is not used in the last time around
        steps_between = around * group.hosts - (name == "all_reduce")
        steps_between = min(steps, steps_between)
    latency = _start(protocol, group) + (steps - steps_between) * HOP_INSIDE[protocol]
    latency += steps_between * _hop_between(protocol, group)
    of_a_rank = num_bytes
    if name not in ("broadcast", "reduce"):
        of_a_rank = num_bytes * steps / group.ranks
    inside = of_a_rank / (_inside(protocol, group, generation) * ring_over_nvlink(group))
    between = of_a_rank / _between(protocol, group, generation)
    return _narrowest(latency, inside, between)


def _tree(num_bytes: float, protocol: str, group: Group, generation: Generation) -> _Spent:
    """Up and down: chains in hosts, and two trees between hosts, each for one half of the bytes."""
    depth = math.ceil(math.log2(group.hosts))
    latency = _start(protocol, group) + 2 * (group.in_host - 1) * HOP_OF_CHAIN[protocol]
    latency += 2 * depth * _hop_between(protocol, group)
    inside = 2 * num_bytes / _inside(protocol, group, generation)
    between = _of_two_trees(num_bytes, group) / _between(protocol, group, generation)
    return _narrowest(latency, inside, between)


def _nvls(num_bytes: float, group: Group, generation: str) -> _Spent:
    """The switch of NVLink adds and multiplies; between hosts the sums go along trees.

    Bytes are cut into rounds of a chunk for each rank of a host and channel. A stage of the
    pipeline is one round behind the one before it: one in a host, and in a tree also one for each
    of its levels, and one to give the sums to the ranks of a host.
    """
    channels = GENERATIONS[generation].nvls_channels[group.hosts > 1]
    at_once = channels * group.in_host
    chunk = _nvls_chunk(num_bytes, at_once, group.hosts)
    overhead = NVLS_OVERHEAD[generation]
    rate = group.inside * NVLS[generation] * chunk / (chunk + overhead) / 1e6
    a_round = min(num_bytes, at_once * chunk)
    latency = START_NVLS + a_round / rate
    between = 0.0
    if group.hosts > 1:
        rate *= NVLS_BETWEEN
        depth = math.ceil(math.log2(group.hosts))
        latency += 2 * depth * _hop_between("Simple", group)
        reached = BETWEEN["Simple"] if group.hosts == 2 else TREE_BETWEEN
        cards = group.between * group.left * reached / 1e6
        latency += a_round / rate + depth * a_round / cards
        between = _of_two_trees(num_bytes, group) / cards
    return _narrowest(latency, num_bytes / rate, between)


def _nvls_chunk(num_bytes: float, at_once: float, hosts: int) -> int:
    """The bytes of a chunk of NVLS (NCCL 2.30.7, src/enqueue.cc, from line 2258)."""
    chunk = 128 * KIB
    limits = [(64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB)]
    if hosts > 1:
        limits = [(4, 64 * KIB), (1, 32 * KIB)]
    if hosts >= 4:
        chunk = 64 * KIB
    for rounds, smaller in limits:
        if num_bytes < rounds * at_once * chunk:
            chunk = min(chunk, smaller)
    return chunk


def _pat(num_bytes: float, group: Group) -> _Spent:
    """Logarithmic, one rank in a host: as NCCL believes, as no measurement is known."""
    hop = _hop_between("Simple", group) / 3.5
    latency = _start("Simple", group) + math.log2(group.hosts) * hop + 2.8 * group.ranks
    of_a_rank = num_bytes * (group.ranks - 1) / group.ranks
    cards = group.between * group.left * BETWEEN["Simple"] * 0.75
    return _Spent(latency, of_a_rank / cards * 1e6, "between")


def _of_two_trees(num_bytes: float, group: Group) -> float:
    """What the cards of a host send: up and down, and of two hosts each is the other's leaf."""
    if group.hosts == 2:
        return num_bytes
    return 2 * num_bytes


def _start(protocol: str, group: Group) -> float:
    """What starting takes."""
    if group.hosts == 1:
        return START[protocol]
    return START[protocol] + START_BETWEEN[protocol]


def _hop_between(protocol: str, group: Group) -> float:
    return 2e6 * group.latency + HOP_BETWEEN[protocol]


def _inside(protocol: str, group: Group, generation: Generation) -> float:
    """What a rank sends in a host, in bytes a microsecond; one that is alone there has no limit."""
    if group.hosts == group.ranks:
        return math.inf
    return group.inside * generation.link * INSIDE[protocol] / 1e6


def _between(protocol: str, group: Group, generation: Generation) -> float:
    """What the ranks of a host send to other hosts, in bytes a microsecond."""
    if group.hosts == 1:
        return math.inf
    reached = group.between * group.left * BETWEEN[protocol] / 1e6
    if protocol == "LL":
        # it goes through the processor's memory
        reached = min(reached, generation.ll[min(group.hosts, 3) - 1] * 1e3)
    return reached


def _narrowest(latency: float, inside: float, between: float) -> _Spent:
    if between > inside:
        return _Spent(latency, between, "between")
    return _Spent(latency, inside, "inside")
