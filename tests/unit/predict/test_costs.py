"""Closed formulas for collectives, beside the simulation that steps through every message."""

import pytest

from distlab.simulated.events import CollectiveCall, Wait
from distlab.simulated.network import Device, Link, Network
from distlab.simulated.simulation import simulate
from distlab_predict.costs import Costs
from distlab_predict.nodes import Call, Kernel

FREE = Device("1 FLOP/s")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", *ROOTED)


def sizes(name, n, num_bytes):
    """What a member sends, as collectives.messages takes it, of a buffer of so many bytes."""
    return {
        "all_reduce": (num_bytes, 4),
        "all_to_all": (num_bytes // n,) * n,
        "barrier": (0,),
        "broadcast": (num_bytes,),
        "reduce": (num_bytes,),
    }.get(name, (num_bytes // n,))


def simulated(name, n, sent, network):
    programs = [
        [CollectiveCall(1, name, "world", 1, tuple(range(n)), 0, sent), Wait(1)] for _ in range(n)
    ]
    return max(simulate(programs, network).clocks)


def predicted(name, n, sent, network):
    return Costs(network, FREE).of(Call((), "world", name, tuple(range(n)), sent), 0)[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 3, 4, 6, 8, 16, 64])
@pytest.mark.parametrize("each", [4, 1 << 20])
def test_on_equal_links_they_take_what_the_simulation_finds(name, n, each):
    """Buffers that divide evenly; a small one, for the tree, and a large one."""
    network = Network("5 us", "25 GB/s")
    sent = sizes(name, n, n * each)
    assert predicted(name, n, sent, network) == pytest.approx(
        simulated(name, n, sent, network), rel=1e-9
    )


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("hosts", [[4, 4], [8] * 4])
def test_on_hosts_they_are_within_a_tenth(name, hosts):
    """A ring goes at the pace of its slowest link."""
    network = Network(hosts=hosts, inside=Link("3 us", "450 GB/s"), between=Link("5 us", "50 GB/s"))
    n = sum(hosts)
    sent = sizes(name, n, n << 20)
    assert predicted(name, n, sent, network) == pytest.approx(
        simulated(name, n, sent, network), rel=0.1
    )


def test_groups_that_share_a_port_get_a_part_of_it():
    """A group with one rank of each host has a quarter of the port, as three others do the same."""
    network = Network(hosts=[4, 4], inside=Link(0, "100 GB/s"), between=Link(0, "4 GB/s"))
    costs = Costs(network, FREE)
    assert costs.link((0, 4)) == (0, 1e-9, "between")
    assert costs.link(tuple(range(8))) == (0, 0.25e-9, "between")
    assert costs.link((0, 1)) == (0, 1e-11, "inside")


def test_a_kernel_takes_what_its_operations_or_its_bytes_need():
    device = Device("100 FLOP/s", memory_bandwidth="10 B/s", efficiency=0.5)
    costs = Costs(Network(0, 1), device)
    assert costs.of(Kernel((), "mm", 100, 10), 0)[0] == 2.0
    assert costs.of(Kernel((), "add", 0, 50), 0)[0] == 5.0
    assert Device("100 FLOP/s").seconds(0, 50) == 0.0


def test_a_message_takes_its_latency_and_its_bytes():
    send = Call((), ("world", "send", 1), "send", (0, 1), (100,), 1)
    cost = Costs(Network(1, "100 B/s"), FREE).of(send, 0)
    assert cost == (2.0, 0.5, [("inside", "out")], "message", "network", 0.0)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("all_reduce", "ring"),
        ("all_gather", "ring"),
        ("all_to_all", "pairwise exchange"),
        ("broadcast", "tree"),
        ("barrier", "dissemination"),
    ],
)
def test_the_cost_of_a_call_names_its_algorithm(name, how):
    call = Call((), "world", name, (0, 1, 2), sizes(name, 3, 3 << 20))
    assert Costs(Network("5 us", "25 GB/s"), FREE).of(call, 0).how == how


def test_the_slowest_of_many_devices_sets_the_pace():
    """One rank is the usual device; of 127, one is 2.42 standard deviations slower."""
    device = Device("1 FLOP/s", spread=0.01)
    kernel = Kernel((), "mm", 100, 0)
    assert Costs(Network(0, "1 B/s"), device).of(kernel, 0)[0] == 100
    assert Costs(Network(0, "1 B/s"), device, 127).of(kernel, 0)[0] == pytest.approx(
        102.42, abs=0.01
    )


def test_a_call_slows_kernels_as_the_device_says():
    call = Call((), "world", "all_gather", (0, 1), (100,))
    costs = Costs(Network(0, "1 B/s"), Device("1 FLOP/s", contention=0.1))
    assert costs.of(call, 0).contention == 0.1
    assert costs.of(Kernel((), "mm", 100, 0), 0).contention == 0.0
