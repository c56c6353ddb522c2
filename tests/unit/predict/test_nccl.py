"""What NCCL chooses and what that takes, beside published tables of nccl-tests."""

import math
import statistics

import pytest

from distlab import Device, Link, Network
from distlab_predict.costs import Costs
from distlab_predict.nccl import MOST_BY_LL, choose, exchange
from distlab_predict.nccl_groups import GENERATIONS, Group, Way
from distlab_predict.nccl_tuning import believed
from distlab_predict.nodes import Call
from tests.unit.predict.published_nccl import TABLES

FREE = Device("1 FLOP/s")
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
# Medians of the errors by table are at most 0.1, but for these. On two virtual hosts of B200, four
# of the eight cards gave 42 GB/s instead of 50 to perftest, and rings no more than that. The
# cluster of 64 reached 320 GB/s, and 380 to 390 with more channels. An NCCL of 2025 takes trees of
# NVLS from 2 MiB on, today's from 32 MiB on. The 8 A100 were measured with one of 2021, which one
# process called for all of them.
LIMIT = 0.1
KNOWN_MISSES = {
    ("16 B200", "all_reduce"): 0.12,
    ("16 B200", "all_gather"): 0.18,
    ("16 B200", "reduce_scatter"): 0.18,
    ("16 B200", "all_to_all"): 0.25,
    ("64 H100", "all_reduce"): 0.16,
    ("8 A100", "all_gather"): 0.11,
    ("8 A100", "all_to_all"): 0.12,
    ("8 A100", "broadcast"): 0.15,
}
HOST = Group(8, 1, 450e9)
A100 = Group(8, 1, 300e9)
HOSTS = Group(64, 8, 450e9, 400e9, 2.7e-6, 8)


def predicted(published, name, num_bytes):
    """Microseconds of a collective on the machine of a table."""
    network = Network.named(published.network, hosts=published.hosts, **published.changes)
    n = sum(published.hosts)
    sent = (num_bytes,)
    if name in ("all_gather", "reduce_scatter"):
        sent = (num_bytes // n,)
    if name == "all_to_all":
        sent = (num_bytes // n,) * n
    call = Call((), "world", name, tuple(range(n)), sent)
    return max(published.start, Costs(network, FREE).of(call, 0).seconds * 1e6)


def errors(published, row):
    """By how much each of a row's times is off."""
    return [predicted(published, row.name, size) / took - 1 for size, took in row.by_size]


ROWS = [(published, row) for published in TABLES for row in published.rows]


@pytest.mark.parametrize(
    ("published", "row"), ROWS, ids=[f"{table.name}, {row.name}" for table, row in ROWS]
)
def test_the_median_error_is_at_most_a_tenth(published, row):
    off = statistics.median(abs(error) for error in errors(published, row))
    assert off <= KNOWN_MISSES.get((published.name, row.name), LIMIT)


def test_the_median_error_over_all_tables_is_below_a_tenth():
    off = [abs(error) for published, row in ROWS for error in errors(published, row)]
    assert statistics.median(off) <= 0.09


USUAL = [pair for pair in ROWS if pair[0].name not in ("16 B200", "64 H100")]


@pytest.mark.parametrize(("published", "row"), USUAL)
def test_large_buffers_are_within_a_tenth(published, row):
    """From 1 GiB on, where only bandwidth counts."""
    for size, took in row.by_size:
        if size >= GIB:
            assert predicted(published, row.name, size) == pytest.approx(took, rel=0.11)


@pytest.mark.parametrize(
    ("name", "num_bytes", "group", "generation", "how"),
    [
        ("all_reduce", 8 * KIB, HOST, "Hopper", ("ring", "LL")),
        ("all_reduce", GIB, HOST, "Hopper", ("NVLS", "Simple")),
        ("all_reduce", GIB, A100, "Ampere", ("ring", "Simple")),
        ("all_reduce", 8 * MIB, A100, "Ampere", ("ring", "LL128")),
        ("all_reduce", 8 * KIB, HOSTS, "Hopper", ("tree", "LL")),
        ("all_gather", 8 * KIB, HOST, "Hopper", ("ring", "LL")),
        ("all_gather", GIB, HOST, "Hopper", ("ring", "Simple")),
        ("all_gather", GIB, HOSTS, "Hopper", ("ring", "Simple")),
        ("broadcast", GIB, HOSTS, "Hopper", ("ring", "Simple")),
    ],
)
def test_it_chooses_as_nccl_does(name, num_bytes, group, generation, how):
    choice = choose(name, num_bytes, group, generation)
    assert (choice.algorithm, choice.protocol) == how


def test_one_rank_in_each_of_many_hosts_gathers_small_buffers_in_logarithmic_steps():
    group = Group(128, 128, 450e9, 50e9, 2.7e-6)
    assert choose("all_gather", 16 * MIB, group, "Hopper").algorithm == "PAT"
    assert choose("all_gather", 8 * GIB, group, "Hopper").algorithm == "ring"


def test_nvls_needs_three_ranks_in_a_host_and_a_switch_that_reduces_and_cards():
    pair = Group(2, 1, 450e9)
    assert choose("all_reduce", GIB, pair, "Hopper").algorithm == "ring"
    one_card = HOSTS._replace(between=50e9, cards=1)
    assert not choose("all_reduce", GIB, one_card, "Hopper").algorithm.startswith("NVLS")
    assert choose("all_reduce", GIB, A100, "Ampere").algorithm == "ring"


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize("group", [HOST, HOSTS, Group(2, 2, 450e9, 50e9, 2.7e-6)])
def test_no_collective_is_quicker_than_its_bytes(generation, name, group):
    """The bus bandwidth is below that of the data sheet, but that of NVLS, which halves bytes."""
    for power in range(10, 34):
        choice = choose(name, 1 << power, group, generation)
        most = group.inside if group.hosts < group.ranks else group.between
        if choice.algorithm.startswith("NVLS"):
            most *= 2
        assert 0 <= choice.moving <= choice.seconds
        assert 0 < choice.busbw * 1e9 < most


def test_h800_hosts_give_experts_what_deepep_publishes():
    """153 to 158 GB/s by NVLink of 200 GB/s each way, 43 to 58 by cards of 50 (DeepEP, README)."""
    group = Group(16, 2, 200e9, 400e9, 2.7e-6)
    inside = exchange(1 * GIB, 0, 7, group, "Hopper")
    assert GIB / inside.seconds / 1e9 == pytest.approx(155.5, rel=0.03)
    between = exchange(0, 1 * GIB, 8, group, "Hopper")
    assert 43 <= GIB / between.seconds / 1e9 <= 58


def test_messages_up_to_a_size_go_without_a_handshake():
    small = exchange(7 * MOST_BY_LL, 0, 7, HOST, "Hopper")
    large = exchange(7 * MOST_BY_LL + 7, 0, 7, HOST, "Hopper")
    assert (small.protocol, large.protocol) == ("LL", "Simple")


def test_a_ring_leaves_hosts_by_all_cards():
    """So 8 cards of 50 GB/s bind a ring of 128 ranks, and not NVLink, with 7 of 8 channels of it.

    Measured were 360 GB/s on 4 hosts (github.com/NVIDIA/nccl/issues/1229), and less on more.
    """
    on_hosts = Group(32, 4, 450e9, 400e9, 2.7e-6, 8)
    choice = choose("reduce_scatter", 8 * GIB, on_hosts, "Hopper")
    assert choice.link == "between"
    assert choice.busbw == pytest.approx(360, rel=0.04)
    slow_nvlink = on_hosts._replace(inside=300e9)
    assert choose("reduce_scatter", 8 * GIB, slow_nvlink, "Hopper").link == "inside"


def test_what_a_channel_reaches_is_of_the_channels_that_were_searched_for():
    """8 channels of LL128 on 8 cards reach 293 GB/s, so that Simple is chosen from there on."""
    group = Group(128, 16, 450e9, 400e9, 2.7e-6, 8)
    times = believed("all_gather", GIB, group, "Hopper")
    ll128 = times[Way("ring", "LL128")]
    moving = GIB * 127 / 128 / (8 * 36.7) / 1e3
    assert ll128 == pytest.approx(14 + 112 * 1.9 + 15 * 4 + moving)
    assert choose("all_gather", GIB, group, "Hopper").protocol == "Simple"


# --- on networks ---


def cost(network, members, name="all_gather", size=MIB, rank=0, peer=None):
    sent = (size,) * len(members) if name == "all_to_all" else (size,)
    return Costs(network, FREE).of(Call((), "world", name, members, sent, peer), rank)


HOSTS_OF_8 = Network.named("H100 hosts", hosts=[8] * 8)


def test_a_call_names_algorithm_protocol_and_link():
    everybody = cost(HOSTS_OF_8, tuple(range(64)), size=64 * MIB)
    assert (everybody.how, everybody.basis) == ("ring, Simple", "network")
    assert everybody.ports == [("between", "out"), ("between", "in")]
    column = cost(HOSTS_OF_8, tuple(range(0, 64, 8)), size=64 * MIB)
    assert column.ports == [("between", "out"), ("between", "in")]
    assert cost(HOSTS_OF_8, (0,)).seconds == 0
    assert cost(HOSTS_OF_8, (0, 8), "send", peer=8).how == "message, Simple"


def test_a_rank_has_its_card_alone_and_a_host_all_of_its_cards():
    """A group of whole hosts has eight times the cards of one with a rank in each host."""
    column = tuple(range(0, 64, 8))
    costs = Costs(HOSTS_OF_8, FREE)
    assert costs.link(column).per_byte == pytest.approx(1 / 50e9)
    assert costs.link(tuple(range(64))).name == "between"
    assert costs.link(tuple(range(64))).per_byte == pytest.approx(1 / 400e9)


def test_ranks_that_share_a_card_share_its_bandwidth():
    network = Network(hosts=[8, 8], inside=Link(0, 1e12), between=Link(0, 50e9), rails=4)
    assert Costs(network, FREE).link((0, 8)).per_byte == pytest.approx(2 / 50e9)


def test_hosts_with_fewer_ranks_use_fewer_cards():
    network = Network(hosts=[8, 4], inside=Link(0, 1e12), between=Link(0, 50e9), rails=16)
    costs = Costs(network, FREE)
    assert costs.link(tuple(range(12))).per_byte == pytest.approx(1 / 400e9)
    assert costs.link((0, 8)).per_byte == pytest.approx(1 / 100e9)


def test_an_exchange_of_experts_goes_by_nvlink_in_a_host_and_by_the_ranks_card_between():
    inside = cost(HOSTS_OF_8, tuple(range(8)), "all_to_all", 64 * MIB)
    between = cost(HOSTS_OF_8, tuple(range(0, 64, 8)), "all_to_all", 64 * MIB)
    both = cost(HOSTS_OF_8, tuple(range(64)), "all_to_all", 8 * MIB)
    assert between.seconds / inside.seconds == pytest.approx(371 * 0.94 / 47, rel=0.02)
    # 56 of 63 messages leave the host
    assert both.seconds == pytest.approx(56 * 8 * MIB / 47e9, rel=0.02)
    assert both.ports == [("between", "out"), ("between", "in")]


def test_splits_count_as_they_are():
    """Rank 0 sends all to its neighbour by NVLink, or all to another host."""
    members = (0, 1, 8, 9)
    costs = Costs(HOSTS_OF_8, FREE)
    near = costs.of(Call((), "world", "all_to_all", members, (0, GIB, 0, 0)), 0)
    far = costs.of(Call((), "world", "all_to_all", members, (0, 0, GIB, 0)), 0)
    assert near.ports[0] == ("inside", "out")
    assert far.ports[0] == ("between", "out")
    assert far.seconds > 5 * near.seconds
    # the one after rank 1 is rank 8
    assert costs.of(Call((), "w", "all_to_all", members, (0, GIB, 0, 0)), 1).ports == far.ports


def oversubscribed(**others):
    return Network.named("H100 hosts", hosts=[8] * 8, **others)


def test_oversubscription_slows_what_goes_above_the_leaf_switches():
    """Rings of neighbours cross them seldom, those of every fourth host and exchanges always."""
    network = oversubscribed(leaf=4, oversubscription=3)
    column = tuple(range(0, 64, 8))
    usual = Costs(HOSTS_OF_8, FREE)
    slow = Costs(network, FREE)
    assert slow.link(column) == usual.link(column)
    assert slow.link((0, 8, 16)) == usual.link((0, 8, 16))
    assert slow.link((0, 32)).per_byte == pytest.approx(3 * usual.link((0, 32)).per_byte)
    exchanged = [cost(on, column, "all_to_all", 64 * MIB).seconds for on in (HOSTS_OF_8, network)]
    # 4 of 7 messages go above
    assert exchanged[1] / exchanged[0] == pytest.approx(3 * 4 / 7, rel=0.02)


def test_the_slowest_of_many_hosts_sets_the_pace():
    network = oversubscribed(spread=0.05)
    column = tuple(range(0, 64, 8))
    slower = Costs(network, FREE).link(column).per_byte * 50e9
    assert slower == pytest.approx(1 + 0.05 * statistics.NormalDist().inv_cdf(8 / 9))
    assert Costs(network, FREE).link((0, 1)) == Costs(HOSTS_OF_8, FREE).link((0, 1))


def test_rings_on_many_hosts_are_slower_by_the_spread_of_hosts():
    """github.com/NVIDIA/nccl/issues/1229: bus bandwidth of reduce-scatters on hosts of H100."""
    measured = {4: 360, 8: 345, 16: 320, 32: 300, 64: 280, 128: 260}
    for hosts, busbw in measured.items():
        network = Network.named("H100 hosts", hosts=[8] * hosts, spread=0.08)
        n = 8 * hosts
        took = cost(network, tuple(range(n)), "reduce_scatter", 8 * GIB // n).seconds
        assert 8 * GIB * (n - 1) / n / took / 1e9 == pytest.approx(busbw, rel=0.06)


def test_a_domain_of_72_is_a_host_of_72():
    racks = Network.named("GB200 NVL72", hosts=[72, 72])
    rack = cost(racks, tuple(range(72)), size=64 * MIB)
    both = cost(racks, tuple(range(144)), size=64 * MIB)
    assert rack.ports[0] == ("inside", "out")
    assert not math.isclose(rack.seconds, both.seconds)


def test_a_collective_occupies_its_channels_multiprocessors():
    """24 in a host, 16 by NVLS, four for each of few cards; the device may say otherwise."""
    device = Device.named("H100")

    def contention(members, name, device=device):
        call = Call((), "world", name, members, (64 * MIB,))
        return Costs(HOSTS_OF_8, device).of(call, 0).contention

    host = tuple(range(8))
    assert contention(host, "all_gather") == 24 / 132
    assert contention(host, "all_reduce") == 16 / 132
    assert contention(tuple(range(0, 64, 8)), "all_gather") == 4 / 132
    assert contention(tuple(range(0, 64, 2)), "all_gather") == 16 / 132
    assert contention(tuple(range(64)), "all_gather") == 16 / 132
    assert contention(host, "all_gather", Device.named("H100", contention=0.1)) == 0.1
    assert contention(host, "all_gather", FREE) == 0.0
