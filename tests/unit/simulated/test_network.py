"""Descriptions of networks: units, hosts, names, and what is refused."""

import pytest

from distlab.simulated.network import Device, Link, Network
from tests.refused import refused


def test_quantities_have_units():
    assert Link("1.5 ms", "100 Gb/s") == Link(1.5e-3, 12.5e9)
    assert Link(0, "100 Mbit/s") == Link(0, 12.5e6)
    assert Device(flops="10 TFLOP/s").flops == 1e13


def test_a_network_names_its_links():
    assert str(Network("5 us", "25 GB/s")) == "5 µs, 25 GB/s"
    assert str(Network.named("InfiniBand NDR", device=Device("1 GFLOP/s"))) == "InfiniBand NDR"
    hosts = Network(
        hosts=[4, 4], inside=Link("2 us", "300 GB/s"), between=Link("10 us", "12.5 GB/s")
    )
    assert str(hosts) == "hosts of 4, 4; inside 2 µs, 300 GB/s; between 10 µs, 12.5 GB/s"


def test_many_hosts_that_are_alike_are_counted():
    between = Link("10 us", "12.5 GB/s")
    assert str(Network(hosts=[8] * 16, inside=between, between=between)).startswith(
        "16 hosts of 8; inside 10 µs"
    )


def test_a_device_may_reach_a_part_of_its_peak():
    assert Device("10 FLOP/s", efficiency=0.5).seconds(10) == 2.0


def test_ranks_are_numbered_host_by_host():
    network = Network(hosts=[1, 2], inside=Link(0, 1), between=Link(1, 1))
    assert [network.host_of(rank) for rank in range(3)] == [0, 1, 1]
    assert network.path(1, 2) == (network.inside, ("rank out", 1), ("rank in", 2))
    assert network.path(0, 2) == (network.between, ("host out", 0), ("host in", 1))


def test_with_rails_a_message_goes_through_the_card_of_its_receiver():
    """NCCL's PXN: the sender has a rank of its host send that has the card."""
    network = Network(hosts=[4, 4], inside=LINK, between=Link(1, 1), rails=2)
    assert [network.rail_of(rank) for rank in range(8)] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert network.path(0, 5) == (network.between, ("card out", 0, 1), ("card in", 1, 1))
    assert network.path(0, 1) == (network.inside, ("rank out", 0), ("rank in", 1))
    assert str(network) == "hosts of 4, 4; inside 0 s, 1 B/s; between 2 x 1 s, 1 B/s"


def test_above_the_leaf_switches_there_is_less_bandwidth():
    network = Network(hosts=[1] * 4, inside=LINK, between=Link(1, 6), leaf=2, oversubscription=3)
    assert [network.leaf_of(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert network.path(0, 1)[0] == Link(1, 6)
    assert network.path(1, 2)[0] == Link(1, 2)


def test_named_hosts_are_those_of_data_sheets():
    hosts = Network.named("H100 hosts", hosts=[8] * 16)
    assert (hosts.inside.bandwidth, hosts.between.bandwidth, hosts.rails) == (450e9, 50e9, 8)
    assert (hosts.nccl, str(hosts)) == ("Hopper", "H100 hosts")
    assert Network.named("GB200 NVL72").hosts == [72]


def test_named_hosts_have_a_card_for_each_rank():
    """A job that has one GPU of each host does not have the cards of the others."""
    assert Network.named("H100 hosts", hosts=[1, 1]).rails == 1
    assert Network.named("H100 hosts", hosts=[2, 4]).rails == 4
    assert Network.named("H100 hosts", hosts=[1, 1], rails=2).rails == 2


LINK = Link(0, 1)
LATENCY = "latency must be 0 or more, as a number or with a unit (s), got"
SIZE = "network must be of 4 ranks, like the cluster,"


def of_hosts(sizes, between=LINK):
    return Network(hosts=sizes, inside=LINK, between=between)


REFUSED = {
    f"{LATENCY} '5'. For example: latency=\"5 us\".": lambda: Link("5", "1 GB/s"),
    (
        "bandwidth must be above 0, as a number or with a unit (B/s, b/s, bit/s), got 'fast'."
    ): lambda: Link(0, "fast"),
    "bandwidth must be above 0": lambda: Link(0, 0),
    "Network must be described by latency and bandwidth, or by hosts": lambda: Network(
        "5 us", "1 GB/s", hosts=[2, 2]
    ),
    "hosts must be a whole number of 1 or more, got 0. For example: hosts=[4, 4].": lambda: (
        of_hosts([2, 0])
    ),
    'between must be a Link, got None. Give between=Link("2 us", "300 GB/s").': lambda: of_hosts(
        [2, 2], None
    ),
    "device must be a Device, got 'fast'.": lambda: Network(0, 1, device="fast"),
    "algorithms['all_reduce'] must be one of 'auto'": lambda: Network(
        0, 1, algorithms={"all_reduce": "best"}
    ),
    "algorithms must be one of 'all_reduce', got 'gather'.": lambda: Network(
        0, 1, algorithms={"gather": "ring"}
    ),
    "rails must be a whole number of 1 or more, got 0. For example: rails=8.": lambda: Network(
        hosts=[2], inside=LINK, between=LINK, rails=0
    ),
    "leaf must be a whole number of 1 or more, got 'all'. For example: leaf=32.": lambda: Network(
        hosts=[2], inside=LINK, between=LINK, leaf="all"
    ),
    "oversubscription must be 1 or more, got 0.5. For example: oversubscription=2.0.": lambda: (
        Network(hosts=[2], inside=LINK, between=LINK, oversubscription=0.5)
    ),
    "rails=, leaf=, oversubscription= and spread= need hosts=, inside= and between=.": lambda: (
        Network(0, 1, rails=8)
    ),
    "and spread= need hosts=": lambda: Network(0, 1, spread=0.1),
    "between= needs hosts= and inside=: without hosts there is one link between any two.": lambda: (
        Network(0, 1, between=LINK)
    ),
    "hosts must be a list of numbers of ranks, got 16. For example: hosts=[4, 4].": lambda: (
        of_hosts(16)
    ),
    "spread must be at least 0 and below 1": lambda: Network(0, 1, spread=1),
    "nccl must be one of 'Ampere', 'Hopper', 'Blackwell', got 'H100'.": lambda: Network(
        0, 1, nccl="H100"
    ),
    "stragglers[0] must be above 0": lambda: Network(0, 1, stragglers={0: 0}),
    "name must be one of 'gigabit Ethernet', '100 Gb/s Ethernet'": lambda: Network.named(
        "infiniband"
    ),
    f"{SIZE} got [4, 4]. Call Cluster(8, network=...)": lambda: of_hosts([4, 4]).check_size(4),
    "stragglers must be ranks from 0 to 3, got {4: 2.0}.": lambda: Network(
        0, 1, stragglers={4: 2.0}
    ).check_size(4),
}


@pytest.mark.parametrize(("words", "make"), REFUSED.items())
def test_nonsense_is_refused(words, make):
    assert words in str(refused(make))
