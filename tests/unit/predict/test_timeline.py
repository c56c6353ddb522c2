"""Streams, events and meetings in virtual time, on nodes that are written by hand."""

import pytest

from distlab.simulated.network import Device, Link, Network
from distlab_predict.costs import Costs
from distlab_predict.nodes import Call, Kernel, Recording
from distlab_predict.streams import NodeLog
from distlab_predict.timeline import timeline_of

COSTS = Costs(Network(0, "1 B/s"), Device("1 FLOP/s"))
PAIR = (0, 1)


def kernel(log, seconds):
    log.compute("mm", seconds, 0)


def recording(log, rank=0):
    return Recording(rank, log.nodes, [(0, len(log.nodes))], {}, "")


def times(*recordings):
    return timeline_of(recordings, COSTS).times


def test_a_collective_overlaps_what_does_not_wait_for_it():
    """It begins after the kernel before it, and what waits for it begins at its end."""
    log = NodeLog()
    kernel(log, 1)
    place = log.call("world", "all_gather", PAIR, (3,))
    kernel(log, 2)
    log.wait(0, {place})
    kernel(log, 1)
    assert times(recording(log)) == [[(0, 1), (1, 4), (1, 3), (4, 5)]]


def test_collectives_of_a_group_go_one_after_another_and_those_of_others_share_the_port():
    log = NodeLog()
    for group in ("a", "a", "b"):
        log.call(group, "all_gather", PAIR, (2,))
    assert times(recording(log)) == [[(0, 4), (4, 6), (0, 4)]]


def test_a_call_alone_again_is_at_full_speed_again():
    """Four bytes are sent while two others are, and two after them."""
    log = NodeLog()
    log.call("a", "all_gather", PAIR, (4,))
    log.call("b", "all_gather", PAIR, (2,))
    assert times(recording(log)) == [[(0, 6), (0, 4)]]


def test_what_is_sent_and_what_is_received_do_not_share_a_port():
    log = NodeLog()
    log.call("out", "send", PAIR, (2,), 1)
    log.call("in", "recv", PAIR, (2,), 1)
    assert times(recording(log)) == [[(0, 2), (0, 2)]]


def test_messages_inside_of_a_host_and_between_hosts_do_not_share_a_port():
    network = Network(hosts=[2, 2], inside=Link(0, "2 B/s"), between=Link(0, "2 B/s"))
    log = NodeLog()
    log.call("inside", "all_gather", (0, 1), (4,))
    log.call("between", "all_gather", (0, 2), (2,))
    costs = Costs(network, Device("1 FLOP/s"))
    assert timeline_of([recording(log)], costs).times == [[(0, 2), (0, 2)]]


def test_a_port_is_free_for_others_during_a_latency():
    """Each of the two takes a second of latency and one in the port."""
    log = NodeLog()
    for group in "ab":
        log.call(group, "all_gather", PAIR, (1,))
    costs = Costs(Network(1, "1 B/s"), Device("1 FLOP/s"))
    assert timeline_of([recording(log)], costs).times == [[(0, 2), (0, 2)]]


def test_an_event_is_what_a_stream_had_begun_when_it_was_recorded():
    log = NodeLog()
    kernel(log, 2)
    ends = log.ends(0)
    kernel(log, 5)
    log.current = lambda: 1
    log.wait(1, ends)
    kernel(log, 1)
    assert times(recording(log))[0][-1] == (2, 3)


def test_what_comes_before_the_first_step_takes_no_time():
    nodes = [Kernel((), "uniform_", 9, 0), Kernel((), "mm", 1, 0)]
    assert times(Recording(0, nodes, [(1, 2)], {}, "")) == [[(0, 0), (0, 1)]]


def test_a_message_that_belongs_to_no_step_of_one_rank_takes_no_time():
    """The receiver's first step begins after it."""
    sender = pipeline(0, 3)
    receiver = pipeline(1, 1)
    receiver = Recording(1, receiver.nodes, [(1, len(receiver.nodes))], {}, "")
    assert times(sender, receiver) == [[(0, 3), (3, 3)], [(3, 3), (3, 4)]]


def pipeline(rank, seconds):
    """A stage that computes and sends, or receives and computes."""
    log = NodeLog()
    if rank == 0:
        kernel(log, seconds)
        log.call(("world", "send", 1), "send", PAIR, (2,), 1)
    else:
        log.wait(0, {log.call(("world", "recv", 0), "recv", PAIR, (2,), 0)})
        kernel(log, seconds)
    return recording(log, rank)


def test_a_message_begins_when_both_sides_could():
    assert times(pipeline(0, 3), pipeline(1, 1)) == [[(0, 3), (3, 5)], [(3, 5), (5, 6)]]


def test_a_rank_that_is_not_recorded_does_what_its_role_does():
    """Rank 0 sends to rank 3, which does what rank 1 does."""
    first = pipeline(0, 3)
    first.nodes[-1] = Call(first.nodes[-1].after, ("world", "send", 3), "send", PAIR, (2,), 3)
    assert times(first, pipeline(1, 1))[1] == [(3, 5), (5, 6)]


def test_a_collective_of_several_roles_begins_when_the_last_has_come():
    def rank(number, seconds):
        log = NodeLog()
        kernel(log, seconds)
        log.call("world", "all_gather", PAIR, (1,))
        return recording(log, number)

    assert [own[1] for own in times(rank(0, 1), rank(1, 4))] == [(4, 5), (4, 5)]


@pytest.mark.parametrize("shares", [((0, 1), (0, 4)), ((0, 4), (0, 1))])
def test_a_collective_takes_as_long_as_its_slowest_rank(shares):
    recordings = []
    for rank, sent in enumerate(shares):
        log = NodeLog()
        log.call("world", "all_to_all", PAIR, sent)
        recordings.append(recording(log, rank))
    assert times(*recordings) == [[(0, 4)], [(0, 4)]]


def test_calls_that_never_meet_are_named():
    alone = NodeLog()
    alone.call("world", "all_gather", PAIR, (1,))
    with pytest.raises(ValueError, match="not every rank calls all_gather: on real machines"):
        times(recording(alone), recording(NodeLog(), 1))


def test_messages_that_travel_slow_what_computes():
    """Half the speed for the first 4 seconds is 2 of 5 seconds of work."""
    log = NodeLog()
    log.call("world", "all_gather", PAIR, (4,))
    kernel(log, 5)
    costs = Costs(Network(0, "1 B/s"), Device("1 FLOP/s", contention=0.5))
    assert timeline_of([recording(log)], costs).times == [[(0, 4), (0, 7)]]


def test_a_kernel_is_slowed_by_the_call_that_occupies_most_multiprocessors():
    """24 of 132 by a ring in a host, 4 by one of a rank in each host."""
    network = Network.named("H100 hosts", hosts=[8] * 8)
    costs = Costs(network, Device.named("H100", host=0))
    ends = []
    for members in (tuple(range(8)), tuple(range(0, 64, 8))):
        log = NodeLog()
        log.call("group", "all_gather", members, (1 << 33,))
        log.compute("add", 0, 1 << 30)
        ends.append(timeline_of([recording(log)], costs).times[0][1][1])
    assert ends[0] / ends[1] == pytest.approx((132 - 4) / (132 - 24))


def test_calls_of_different_groups_occupy_different_multiprocessors():
    """Each of them 24 of 132; what one group does, it does one after another."""
    network = Network.named("H100 hosts", hosts=[8] * 8)
    costs = Costs(network, Device.named("H100", host=0))
    alone = kernel_beside(costs, "group")
    assert kernel_beside(costs, "group", "group") == alone
    assert alone / kernel_beside(costs, "group", "other") == pytest.approx((132 - 48) / (132 - 24))


def test_what_is_said_of_all_calls_is_not_added_up():
    costs = Costs(
        Network(0, "1 B/s"), Device("1 FLOP/s", memory_bandwidth="1 GB/s", contention=0.5)
    )
    assert kernel_beside(costs, "group") == kernel_beside(costs, "group", "other") == 2.0


def kernel_beside(costs, *groups):
    """When a kernel ends that goes on beside long calls of these groups."""
    log = NodeLog()
    for group in groups:
        log.call(group, "all_gather", tuple(range(8)), (1 << 36,))
    log.compute("add", 0, 10**9)
    return timeline_of([recording(log)], costs).times[0][-1][1]
