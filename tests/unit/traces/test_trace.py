"""Trace: from hand-written recordings to events, messages and collectives."""

import itertools
import json
from math import inf

import pytest

import distlab
from distlab.traces import read
from distlab.traces.events import Event
from distlab.traces.shares import shares_of
from distlab.traces.trace import Trace
from tests.unit.recordings import Rank


def traced(*ranks, missing=None):
    """The trace of ranks 0, 1, ...; None for one of which nothing is there."""
    trace = Trace(range(len(ranks)))
    recorded = {r: rank.recorded for r, rank in enumerate(ranks) if rank is not None}
    trace.finish(read.from_recordings(recorded), missing or {})
    return trace


def of(trace, rank, *kinds):
    """The rank's events of these kinds as (op, start, end), in ms."""
    events = [event for event in trace.events if event.rank == rank and event.kind in kinds]
    return [(event.op, in_ms(event.start), in_ms(event.end)) for event in events]


def in_ms(seconds):
    return round(1e3 * seconds, 3)


# --- messages


def test_a_remote_call_is_two_messages():
    """One to the start of the function, one from its end back; the caller waits until that end."""
    caller = Rank(2).remote("add", 7, 0, 4).remote("add", 8, 5, 9, waited=6)
    trace = traced(caller, Rank(2).served("add", 0, 7, 1, 3).served("add", 0, 8, 6, 7))
    found = [(m.src, m.dst, in_ms(m.left), in_ms(m.arrived)) for m in trace.messages]
    assert found == [(0, 1, 0, 1), (1, 0, 3, 4), (0, 1, 5, 6), (1, 0, 7, 9)]
    assert of(trace, 1, "serve") == [("add", 1, 3), ("add", 6, 7)]
    remote = [event for event in trace.events if event.kind == "remote"]
    assert [in_ms(event.waiting) for event in remote] == [3, 2]
    assert trace.shares()[1].compute == pytest.approx(3e-3)
    # the callee is not traced: nothing is called lost
    alone = traced(caller, None, missing={1: "it was not asked"})
    assert (of(alone, 0, "remote"), alone.messages) == (of(trace, 0, "remote"), [])


def test_a_blocking_message():
    """The n-th send meets the n-th recv; both wait until the later one has come."""
    trace = traced(Rank(2).send(1, 0, 3), Rank(2).recv(0, 2, 3.5))
    (message,) = trace.messages
    assert (message.src, message.dst, message.tag, message.num_bytes) == (0, 1, 0, 4)
    assert message.matched
    assert (in_ms(message.left), in_ms(message.arrived)) == (2, 3.5)
    assert (in_ms(message.send.waiting), message.recv.waiting) == (2, 0)


def test_received_from_anybody():
    """The source is the one that it turned out to be; without one, nothing came."""
    receiver = Rank(3).call("recv", "recv_anysource", 0, 2, peer=2, tag=0)
    receiver.call("recv", "recv_anysource", 3, 9, tag=0, failed=True)
    trace = traced(receiver, Rank(3), Rank(3).send(0, 1, 2))
    assert {(m.src, m.matched) for m in trace.messages} == {(None, False), (2, True)}
    assert [event.ready for event in trace.events if event.failed] == [inf]


@pytest.mark.parametrize(
    ("sender", "receiver", "matched"),
    [
        # a send whose recv was posted before the trace
        (Rank(2).send(1, 0, 1, sequence=4), Rank(2).recv(0, 2, 3, sequence=5), [False, False]),
        # a call that raised: the next one is not taken for the partner
        (
            Rank(2).send(1, 0, 1, failed=True).send(1, 2, 4, sequence=1),
            Rank(2).recv(0, 3, 4),
            [False, True],
        ),
    ],
)
def test_messages_without_a_partner(sender, receiver, matched):
    assert sorted(message.matched for message in traced(sender, receiver).messages) == matched


def test_immediate_calls():
    """isend and irecv do not block; their waits do. An isend is over when its receiver has it all.

    One without a partner, and for which nobody waits, is in flight until the end of the trace.
    """
    sender = Rank(2).send(1, 0, 9, blocking=False, waited=8).send(1, 1, 1, blocking=False, tag=1)
    trace = traced(sender, Rank(2).recv(0, 1, 4, blocking=False, waited=2).row("aten::mm", 10, 12))
    assert of(trace, 0, "send", "wait") == [("isend", 0, 4), ("isend", 1, 12), ("isend", 8, 9)]
    assert of(trace, 1, "recv", "wait") == [("irecv", 1, 4), ("irecv", 2, 4)]
    waits = [event for event in trace.events if event.kind == "wait"]
    assert [(event.blocking, event.waiting) for event in waits] == [(True, 0)] * 2


# --- collectives


def test_a_collective_waits_for_its_last_rank():
    """All wait for the last to come; another collective is no partner."""
    other = Rank(2).all_reduce(3, 5).call("barrier", "barrier", 6, 9)
    whole, *parts = traced(Rank(2).all_reduce(0, 5).all_reduce(6, 9), other).collectives
    assert (whole.op, whole.group, whole.complete) == ("all_reduce", (0, 1), True)
    assert in_ms(whole.came) == 3
    assert [in_ms(event.waiting) for event in whole.events] == [3, 0]
    assert [(c.op, c.complete, c.came, c.events[0].ready) for c in parts] == [
        ("all_reduce", False, None, inf),
        ("barrier", False, None, inf),
    ]


def test_who_waits_for_whom_in_a_rooted_collective():
    """The root, rank 0, needs everybody; the others need the root alone."""
    calls = [Rank(3).call("scatter", "scatter", at, 9, peer=0) for at in (1, 0, 3)]
    trace = traced(*calls)
    assert {event.rank: in_ms(event.ready) for event in trace.events} == {0: 3, 1: 1, 2: 3}
    assert [(c.complete, c.came) for c in trace.collectives] == [(True, None)]


def test_an_asynchronous_collective_ends_with_gloo():
    """When gloo's thread was done, although wait() came later."""
    rank = Rank(1, [("1", 0, (0,))])
    rank.all_reduce(0, 9, blocking=False, waited=8, gloo=(1, 3))
    rank.all_reduce(0.5, 9, blocking=False, waited=8.5, group=1)
    rank.row("gloo:all_reduce", 2, 4, thread=3)
    trace = traced(rank)
    assert of(trace, 0, "collective") == [("all_reduce", 0, 3), ("all_reduce", 0.5, 4)]
    assert of(trace, 0, "wait") == [("all_reduce", 8, 9), ("all_reduce", 8.5, 9)]


def ddp_step():
    """One rank's backward with two buckets, as DDP makes it from C++."""
    backward = "autograd::engine::evaluate_function: AddmmBackward0"
    rank = Rank(2).cpp_all_reduce(2.85, 4096).cpp_all_reduce(3.92, 2048)
    rank.row("aten::linear", 0, 1, number=3)
    rank.row(backward, 2, 3, number=3)
    rank.row("c10d::allreduce_", 2.8, 2.9).row("gloo:all_reduce", 3, 6, thread=2)
    rank.row(backward, 3.05, 4.3, number=-1)
    rank.row("c10d::allreduce_", 3.9, 3.95).row("gloo:all_reduce", 4, 8, thread=3)
    rank.row("torch.distributed.ddp.reducer::copy_bucket_to_grad", 6.01, 6.1)
    rank.row("torch.distributed.ddp.reducer::copy_bucket_to_grad", 8.01, 8.1)
    return rank.row("Optimizer.step#SGD.step", 8.3, 9, annotated=True)


def test_training_with_ddp():
    """Buckets have group and bytes from the flight recorder, and waits are gaps.

    torch's calls are taken together as forward, backward and optimizer.
    """
    trace = traced(ddp_step(), ddp_step())
    assert of(trace, 0, "collective") == [("all_reduce", 2.85, 6), ("all_reduce", 3.92, 8)]
    buckets = {(e.group, e.num_bytes, e.blocking) for e in trace.events if e.kind == "collective"}
    assert buckets == {((0, 1), 4096, False), ((0, 1), 2048, False)}
    assert of(trace, 0, "wait") == [("all_reduce", 4.3, 6.01), ("all_reduce", 6.1, 8.01)]
    assert all(c.complete for c in trace.collectives)
    computing = [op for op, *_ in of(trace, 0, "compute", "forward", "backward", "optimizer")]
    assert computing == ["forward", "backward", "backward", "backward", "optimizer"]


def test_a_collective_of_cpp_that_is_waited_for_at_once_blocks():
    """Where nothing happens between a call of C++'s and its end, the rank was blocked."""
    rank = Rank(1).cpp_all_reduce(0.05, 8)
    rank.row("c10d::allreduce_", 0, 0.1)
    rank.row("gloo:all_reduce", 0.2, 2, thread=2)
    rank.row("aten::mm", 2.01, 3)
    trace = traced(rank)
    assert of(trace, 0, "collective") == [("all_reduce", 0.05, 2)]
    assert [e.blocking for e in trace.events if e.kind == "collective"] == [True]


@pytest.mark.parametrize(("over", "waits"), [(5, [("all_reduce", 2.1, 5.1)]), (2.05, [])])
def test_waits_of_functional_collectives(over, waits):
    """torch's own wait for a new tensor is a wait, and not computation.

    There is none for one that is complete already, though the main thread was in plain Python then.
    """
    rank = Rank(1).cpp_all_reduce(0.15, 8)
    rank.row("_c10d_functional::all_reduce", 0, 0.3)
    rank.row("c10d::allreduce_", 0.1, 0.2)
    rank.row("gloo:all_reduce", 0.2, over, thread=2)
    rank.row("aten::mm", 0.4, 2)
    rank.row("_c10d_functional::wait_tensor", 2.1, 5.1)
    rank.row("PythonSubclass", 2.2, 5.05)
    trace = traced(rank)
    assert of(trace, 0, "collective") == [("all_reduce", 0.15, over)]
    assert [event.blocking for event in trace.events if event.kind == "collective"] == [False]
    assert (of(trace, 0, "wait"), of(trace, 0, "compute")) == (waits, [("mm", 0.4, 2)])


# --- computation


def test_computation_is_divided_by_waiting_and_by_long_gaps():
    """Calls that follow closely are one block, until a blocking call or a long gap."""
    rank = Rank(2)
    rank.row("aten::mm", 0, 1)
    rank.row("aten::mm", 1.1, 2)
    rank.row("aten::add", 3, 4)
    rank.send(1, 4.01, 4.05)
    rank.row("c10d::send", 4.015, 4.018)
    rank.row("aten::add", 4.06, 5)
    expected = [("mm", 0, 2), ("add", 3, 4), ("add", 4.06, 5)]
    assert of(traced(rank, Rank(2)), 0, "compute") == expected


# --- where time goes


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], [0, 0, 0, 0, 0]),
        ([("compute", 0, 2)], [2, 0, 0, 0, 7]),
        # a collective of which half is beside backward, and a wait for it
        (
            [("backward", 0, 4), ("collective", 2, 6, False, 2), ("wait", 4, 6, True, 2)],
            [2, 2, 2, 0, 3],
        ),
        # the partner comes at 5: until then it waits, but for what it computes meanwhile
        ([("forward", 0, 3), ("collective", 1, 7, False, 5)], [3, 0, 2, 2, 2]),
        ([("recv", 0, 3, True, inf), ("compute", 4, 5)], [1, 0, 0, 3, 5]),
        ([("recv", 1, 3)], [0, 0, 2, 0, 7]),
    ],
)
def test_shares(calls, expected):
    """Computing, communication, waiting and the rest add up to the whole time."""
    events = [Event(0, kind, kind, *times) for kind, *times in calls]
    if events:
        events.append(Event(1, "compute", "mm", 0, 9))
    assert shares_of(events, 0) == pytest.approx(expected)


# --- how it is shown


def test_the_table_adds_up_what_is_alike():
    """Equal op, group, partners and bytes are one row, the longest first."""
    sender = Rank(2).send(1, 0, 3).send(1, 4, 5).all_reduce(6, 8).row("aten::mm", 9, 10)
    table = traced(sender, Rank(2).recv(0, 2, 3).recv(0, 4, 5.5).all_reduce(7, 8)).table()
    assert table.rows == (
        ("send", "0 → 1", "4", "2", "4.00 ms", "2.00 ms", "2.00 ms"),
        ("all_reduce", "0, 1", "4", "2", "3.00 ms", "1.00 ms", "1.50 ms"),
        ("recv", "0 → 1", "4", "2", "2.50 ms", "0.00 µs", "1.25 ms"),
        ("compute", "", "", "1", "1.00 ms", "", "1.00 ms"),
    )
    assert table.title == "2 ranks, 2 messages, 1 collective, 10.0 ms"


def test_perfetto_gets_a_process_for_each_rank(tmp_path):
    """A process a rank, slices that nest on each track, an arrow for each message."""
    sender = ddp_step().send(1, 10, 13).send(1, 14, 19, blocking=False, waited=16, tag=1)
    receiver = ddp_step().recv(0, 12, 13.5).recv(0, 15, 18, blocking=False, waited=17, tag=1)
    trace = traced(sender, receiver)
    items = json.loads(trace.to_chrome(tmp_path / "trace.json").read_text())["traceEvents"]
    assert [item["args"]["name"] for item in items if item["ph"] == "M"] == ["rank 0", "rank 1"]
    slices_of_tracks = slices_by_track(items)
    for slices in slices_of_tracks.values():
        for (_, end), (later, last) in itertools.combinations(slices, 2):
            is_after = later >= end - 1e-6
            is_inside = last <= end + 1e-6
            assert is_after or is_inside
    arrows = [item for item in items if item["ph"] in "sf"]
    assert [(item["id"], item["ph"]) for item in arrows] == [(0, "s"), (0, "f"), (1, "s"), (1, "f")]
    for item in arrows:
        slices = slices_of_tracks[item["pid"], item["tid"]]
        assert any(start <= item["ts"] <= end for start, end in slices)


def slices_by_track(items):
    """(start, end) of each slice, by process and track, outer ones before inner ones."""
    tracks = {}
    for item in items:
        if item["ph"] == "X":
            track = item["pid"], item["tid"]
            tracks.setdefault(track, []).append((item["ts"], item["ts"] + item["dur"]))
    for slices in tracks.values():
        slices.sort(key=lambda one: (one[0], -one[1]))
    return tracks


def test_a_trace_that_is_being_recorded():
    """It says so, and looking at it is an error that says when it can be looked at."""
    trace = Trace([0, 1])
    assert (repr(trace), trace._repr_png_()) == ("Trace: ranks 0-1, still being recorded", None)
    words = r"still being recorded. Look at it after the with block.$"
    with pytest.raises(distlab.ClusterError, match=words):
        trace.plot()


def test_the_repr_counts():
    """In one line: ranks, messages, those without a partner, collectives, and how long it took."""
    sender = Rank(2).send(1, 0, 3).send(1, 4, 5, tag=1).all_reduce(6, 8)
    trace = traced(sender, Rank(2).recv(0, 2, 3).all_reduce(7, 8))
    assert traced(Rank(2)).plot() is not None  # of an empty trace: empty lanes
    assert repr(trace) == "Trace: 2 ranks, 2 messages, 1 without a partner, 1 collective, 8.00 ms"
    some = Trace([0, 1], "simulated: 4 ranks, 5 µs, 1 GB/s")
    some.finish((trace.events, trace.messages, trace.collectives, {}), {})
    assert repr(some).startswith("Trace: simulated: 2 of 4 ranks, 5 µs, 1 GB/s, 2 messages, ")
    data, size = trace._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert size["width"] == 750
    assert size["alt"] == repr(trace)


@pytest.mark.parametrize(
    "window", [(2, 1), (9, 12), 5, (1, 2, 3), "ab", ("1", "2"), (1, None), (inf, 9), (0, inf)]
)
def test_bad_windows(window):
    """A window is two times in milliseconds that overlap the trace."""
    with pytest.raises(distlab.ArgumentError, match=r"^window must be two times"):
        traced(Rank(1).all_reduce(0, 8)).plot(window=window)
