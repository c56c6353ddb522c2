"""What NCCL believes a collective takes, by algorithm and protocol; it then takes the quickest.

Called by nccl.py, in the notebook's process. Pure functions. What it believes is not what was
measured: latencies are about half, as only the order of the ways counts. nccl.py has what they
take. Numbers are those of NCCL 2.30.7, src/graph/tuning.cc (tables from line 153, the model from
line 252, the correction of trees from line 617). Units here are NCCL's own: microseconds and GB/s.
"""

import math
from collections.abc import Iterator

from distlab_predict.nccl_groups import (
    GENERATIONS,
    Generation,
    Group,
    Way,
    channels_of,
    heads,
    ring_over_nvlink,
    searched,
)

PROTOCOLS = ("LL", "LL128", "Simple")
ByProtocol = tuple[float, float, float]  # of LL, LL128, Simple
BASE: dict[str, ByProtocol] = {
    "ring": (6.6, 14, 8.4),
    "tree": (6.8, 14, 8.4),
    "NVLS tree": (0, 0, 0),
    "PAT": (8, 8, 8),
}
HOP_INSIDE: dict[str, ByProtocol] = {
    "ring": (0.6, 1.9, 3.4),
    "tree": (0.6, 1.25, 4),
    "NVLS tree": (0, 0, 25),
}
HOP_BETWEEN: dict[str, ByProtocol] = {
    "ring": (2.7, 4, 14),
    "tree": (5, 8.5, 14),
    "NVLS tree": (0, 0, 20.9),
}
NVLS_LATENCY = 25
CARD = 0.96  # cards of 400, 200 and 100 Gb/s count as 48, 24 and 12 GB/s (src/graph/search.cc)
NET_OVERHEAD = (1, 1, 3)  # each step of a ring between hosts also takes the processor's time
PLATEAU = 1.4  # of the latency of an all-reduce by a ring between hosts, in Simple
# of a tree's bandwidth, by the power of two of the size, from 64 B on
TREE_CORRECTION = {
    "LL": "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9",
    "LL128": "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9",
    "Simple": ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9",
}
CORRECTIONS = {name: tuple(map(float, text.split())) for name, text in TREE_CORRECTION.items()}


def believed(name: str, num_bytes: float, group: Group, generation: str) -> dict[Way, float]:
    """How many microseconds NCCL expects of each way that it may take.

    Args:
        name: "all_reduce", "all_gather", "reduce_scatter", "broadcast" or "reduce".
        num_bytes: of the whole buffer.
        group: of more than one rank.
        generation: one of GENERATIONS.
    """
    times = {}
    for way in _ways(name, group, GENERATIONS[generation]):
        bandwidth = _bandwidth(name, way, num_bytes, group, GENERATIONS[generation])
        latency = _latency(name, way, num_bytes, group, GENERATIONS[generation])
        times[way] = latency + num_bytes / bandwidth / 1e3
    return times


def _ways(name: str, group: Group, generation: Generation) -> Iterator[Way]:
    """The ways that there are for a collective."""
    for protocol in PROTOCOLS:
        yield Way("ring", protocol)
        if name == "all_reduce":
            yield Way("tree", protocol)
    has_switch = generation.nvls > 0 and group.in_host > 2 and heads(group) > 1
    if name == "all_reduce" and has_switch:
        yield Way("NVLS" if group.hosts == 1 else "NVLS tree", "Simple")
    if name in ("all_gather", "reduce_scatter") and group.hosts == group.ranks:
        yield Way("PAT", "Simple")


def _by_hosts(values: tuple[float, float, float], group: Group) -> float:
    return values[min(group.hosts, 3) - 1]


def _steps(name: str, group: Group) -> int:
    """How many steps a ring has."""
    if name == "all_reduce":
        return 2 * (group.ranks - 1)
    if name in ("all_gather", "reduce_scatter"):
        return group.ranks - 1
    return group.ranks


def _bandwidth(
    name: str, way: Way, num_bytes: float, group: Group, generation: Generation
) -> float:
    """The bytes of the buffer that NCCL expects a way to get through, in GB/s."""
    channels = searched(group, generation)
    inside = group.inside * generation.link / 1e9
    between = math.inf
    of_a_ring = inside
    if group.hosts > 1:
        between = CARD * group.between / 1e9
        of_a_ring = min(inside * ring_over_nvlink(group), between)
    share = group.ranks / _steps(name, group)
    if way.algorithm == "ring":
        busbw = of_a_ring
        if way.protocol == "LL":
            busbw = min(busbw / 2, _by_hosts(generation.ll, group))
        if way.protocol == "LL128":
            busbw = min(0.92 * busbw, channels * generation.ring_ll128)
    elif way.algorithm == "tree":
        share = 0.5
        busbw = of_a_ring
        if group.hosts == 2:
            busbw = min(inside, 2 * between)
        busbw = min(0.92 * busbw, channels * _by_hosts(generation.tree, group))
        if way.protocol == "LL":
            busbw = min(busbw / 3.8, _by_hosts(generation.ll, group))
        if way.protocol == "LL128":
            reached = 7 / 9 if group.hosts == 1 else 120 / 128
            busbw = min(reached * busbw, channels * _by_hosts(generation.tree_ll128, group))
        busbw *= _correction(way.protocol, num_bytes)
    elif way.algorithm == "PAT":
        share = 1.0
        busbw = 0.75 * of_a_ring
    else:
        # an all-reduce has both of its halves under way at the same time
        channels = heads(group)
        busbw = 2 * inside * generation.nvls * (channels - 1) / channels
        if group.hosts > 1:
            doubled = 2 if group.hosts == 2 else 1
            most = channels * _by_hosts(generation.nvls_tree, group)
            busbw = min(busbw, doubled * between, most)
    return busbw * share


def _correction(protocol: str, num_bytes: float) -> float:
    """What a tree reaches of its bandwidth at this size."""
    power = math.floor(math.log2(max(num_bytes, 64) / 64))
    corrections = CORRECTIONS[protocol]
    return corrections[power] if power < len(corrections) else 1.0


def _latency(name: str, way: Way, num_bytes: float, group: Group, generation: Generation) -> float:
    """The latency that NCCL expects, in microseconds."""
    place = PROTOCOLS.index(way.protocol)
    log_hosts = math.floor(math.log2(group.hosts))
    if way.algorithm == "NVLS":
        return NVLS_LATENCY
    base = BASE[way.algorithm][place]
    if way.algorithm == "PAT":
        return base + log_hosts * HOP_BETWEEN["tree"][place] / 3.5 + 2.8 * group.ranks
    inside = HOP_INSIDE[way.algorithm][place]
    between = HOP_BETWEEN[way.algorithm][place]
    if way.algorithm == "NVLS tree":
        return base + inside + 2 * log_hosts * between
    if group.hosts == group.ranks:
        between = HOP_BETWEEN["tree"][place]
    if way.algorithm == "tree":
        return base + 2 * ((group.in_host - 1) * inside + log_hosts * between)
    if name in ("broadcast", "reduce"):
        return base + (inside if group.hosts == 1 else between)
    steps_between = 0
    if group.hosts > 1:
        steps_between = group.hosts - 1
        inside = max(inside, NET_OVERHEAD[place])
    if name == "all_reduce":
        steps_between *= 2
    steps_inside = _steps(name, group) - steps_between
    latency = base + steps_inside * inside + steps_between * between
    of_a_channel = num_bytes / (channels_of(way, group, generation) * group.ranks)
    is_on_plateau = group.hosts > 1 and name == "all_reduce" and of_a_channel >= 64
    if is_on_plateau and way.protocol == "Simple":
        latency *= PLATEAU
    return latency
