"""The table of a step's collectives, on nodes that are written by hand."""

import pytest

from distlab import Device, Link, Network
from distlab_predict.collectives import bus_bytes, whole_buffer
from distlab_predict.nodes import Call, Recording
from distlab_predict.prediction import Prediction
from distlab_predict.streams import NodeLog

PAIR = (0, 1)


def prediction(log, network, device):
    recording = Recording(0, log.nodes, [(0, len(log.nodes))], {}, "")
    return Prediction(2, network, device, [recording])


def test_a_row_says_how_often_how_long_and_what_is_exposed():
    """Two gathers of 3 s, one after the other, beside kernels of 4 s in between."""
    log = NodeLog()
    log.call("world", "all_gather", PAIR, (3,))
    log.call("world", "all_gather", PAIR, (3,))
    log.compute("mm", 4, 0)
    log.call("other", "all_reduce", PAIR, (0, 4))
    found = prediction(log, Network(0, "1 B/s"), Device("1 FLOP/s")).collectives()
    gather = found.rows[0]
    assert gather[:5] == ("all_gather", 2, 6, "ring", 2)
    assert (gather.seconds, gather.busbw, gather.exposed) == (3.0, 1e-9, 2.0)
    assert len(found) == 2
    assert {row.name for row in found} == {"all_gather", "all_reduce"}


def test_the_table_names_algorithm_and_protocol():
    log = NodeLog()
    members = tuple(range(16))
    log.call("world", "all_gather", members, (64 << 20,))
    recording = Recording(0, log.nodes, [(0, 1)], {}, "")
    hosts = Network.named("H100 hosts", hosts=[8, 8])
    shown = repr(Prediction(16, hosts, Device("1 TFLOP/s"), [recording]).collectives())
    assert "Predicted, not measured: collectives of rank 0 in a step" in shown
    assert "all_gather      16   1 GiB   ring, Simple       1     2.78 ms     362.28 GB/s" in shown


@pytest.mark.parametrize(
    ("call", "num_bytes", "on_the_bus"),
    [
        (Call((), "w", "all_reduce", (0, 1, 2, 3), (100, 4)), 100, 150),
        (Call((), "w", "all_gather", (0, 1, 2, 3), (25,)), 100, 75),
        (Call((), "w", "reduce_scatter", (0, 1, 2, 3), (25,)), 100, 75),
        (Call((), "w", "all_to_all", (0, 1, 2, 3), (10, 20, 30, 40)), 100, 75),
        (Call((), "w", "broadcast", (0, 1, 2, 3), (100,)), 100, 100),
        (Call((), "w", "send", (0, 1, 2, 3), (100,), 2), 100, 100),
    ],
)
def test_bytes_are_counted_as_nccl_tests_do(call, num_bytes, on_the_bus):
    assert whole_buffer(call) == num_bytes
    assert bus_bytes(call.name, len(call.members), num_bytes) == on_the_bus


def test_what_goes_on_beside_two_kernels_at_once_is_hidden_once():
    log = NodeLog()
    log.call("world", "all_gather", PAIR, (10,))
    with_streams = NodeLog()
    with_streams.call("world", "all_gather", PAIR, (10,))
    with_streams.compute("mm", 4, 0)
    one = prediction(with_streams, Network(0, "1 B/s"), Device("1 FLOP/s")).collectives()
    alone = prediction(log, Network(0, "1 B/s"), Device("1 FLOP/s")).collectives()
    assert (one.rows[0].exposed, alone.rows[0].exposed) == (6.0, 10.0)


def test_links_of_hosts_are_what_they_carry():
    log = NodeLog()
    log.call("world", "all_gather", PAIR, (100,))
    network = Network(hosts=[1, 1], inside=Link(0, 1), between=Link(0, 1e9))
    found = prediction(log, network, Device("1 FLOP/s")).collectives()
    assert found.rows[0].busbw == pytest.approx(1.0)
