"""Descriptions of networks: units, hosts, names, and what is refused."""

import pytest

import distlab
from distlab.simulated.network import NETWORKS, Device, Link, Network


def test_quantities_have_units():
    assert Link("5 us", "25 GB/s") == Link(5e-6, 25e9)
    assert Link("1.5 ms", "100 Gb/s") == Link(1.5e-3, 12.5e9)
    assert Link("0 s", "1 kB/s") == Link(0, 1000)
    assert Device(flops="10 TFLOP/s").flops == 1e13


def test_a_network_names_its_links():
    assert str(Network("5 us", "25 GB/s")) == "5 µs, 25 GB/s"
    assert str(Network.named("InfiniBand NDR")) == "InfiniBand NDR"
    hosts = Network(hosts=[4, 4], inside=Link("2 us", "300 GB/s"), between=Link("10 us", "12.5 GB/s"))
    assert str(hosts) == "hosts of 4, 4; inside 2 µs, 300 GB/s; between 10 µs, 12.5 GB/s"


def test_named_networks_take_other_arguments_too():
    for name in NETWORKS:
        assert Network.named(name, jitter=0.1).jitter == 0.1


def test_ranks_are_numbered_host_by_host():
    network = Network(hosts=[1, 2], inside=Link(0, 1), between=Link(1, 1))
    assert [network.host_of(rank) for rank in range(3)] == [0, 1, 1]
    assert network.path(1, 2).out == ("rank out", 1)
    assert network.path(0, 2)[2:] == (("host out", 0), ("host in", 1))


LINK = Link(0, 1)
QUANTITY = "must be {}, as a number or with a unit ({}), got {}."
DESCRIBED = "Network must be described by latency and bandwidth, or by hosts"
HOSTS = Network(hosts=[4, 4], inside=LINK, between=LINK)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Link("5", "1 GB/s"),
            "latency " + QUANTITY.format("0 or more", "s", "'5'") + ' Give for example latency="5 us".',
        ),
        (lambda: Link(-1, "1 GB/s"), "latency " + QUANTITY.format("0 or more", "s", "-1")),
        (lambda: Link(0, "fast"), "bandwidth " + QUANTITY.format("above 0", "B/s, b/s, bit/s", "'fast'")),
        (lambda: Link(0, 0), "bandwidth must be above 0"),
        (lambda: Network("5 us"), DESCRIBED),
        (lambda: Network("5 us", "1 GB/s", hosts=[2, 2]), DESCRIBED),
        (
            lambda: Network(hosts=[2, 0], inside=LINK, between=LINK),
            "hosts must be a list of whole numbers of ranks above 0, got [2, 0].",
        ),
        (
            lambda: Network(hosts=[2, 2], inside=LINK),
            'between must be a Link, got None. Give between=Link("2 us", "300 GB/s").',
        ),
        (lambda: Network(0, 1, device="fast"), "device must be a Device, got 'fast'."),
        (
            lambda: Network(0, 1, algorithms={"all_reduce": "best"}),
            "algorithms['all_reduce'] must be one of auto, ring, tree, naive",
        ),
        (
            lambda: Network(0, 1, algorithms={"gather": "ring"}),
            "algorithms['gather'] must be one of all_reduce, broadcast, reduce",
        ),
        (lambda: Network(0, 1, jitter=-0.5), "jitter must be 0 or more, got -0.5. Give for example jitter=0.1."),
        (lambda: Network(0, 1, stragglers={0: 0}), "stragglers[0] must be above 0"),
        (lambda: Network.named("infiniband"), "name must be one of 'gigabit Ethernet', '100 Gb/s Ethernet'"),
        (lambda: Device(), "Device must be either flops or cpu, got (None, None)."),
        (
            lambda: HOSTS.check_size(4),
            "network must be of 4 ranks, as the cluster, got [4, 4]. Call Cluster(8, network=...)",
        ),
        (
            lambda: Network(0, 1, stragglers={4: 2.0}).check_size(4),
            "stragglers must be ranks from 0 to 3, got {4: 2.0}.",
        ),
    ],
)
def test_nonsense_is_refused(make, words):
    with pytest.raises(distlab.ArgumentError) as refused:
        make()
    assert words in str(refused.value)
