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
