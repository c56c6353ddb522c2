"""distlab.trace: from what ranks recorded to events, messages and collectives; recordings are written by hand."""

import gzip
import io
import json
from math import inf

import pytest
from PIL import Image

import distlab
from distlab.trace import Trace
from distlab.trace.clocks import Offset, estimate
from tests.unit.recordings import Recorded


def traced(*ranks, missing=None, offsets=None):
    """The trace of ranks 0, 1, ...; None for one of which nothing is there."""
    trace = Trace(range(len(ranks)))
    trace.finish({r: rank.told() for r, rank in enumerate(ranks) if rank is not None}, missing, offsets)
    return trace


def ends(trace):
    """Every message as (source, destination, tag, whether it is matched)."""
    return sorted((m.src, m.dst, m.tag, m.matched) for m in trace.messages)


def of(trace, rank, kind):
    return [event for event in trace.events if (event.rank, event.kind) == (rank, kind)]


# --- messages


def test_a_blocking_message():
    """The n-th send meets the n-th recv; both wait until the later of the two has come, and data move from then on."""
    trace = traced(Recorded(2).send(1, 0, 3), Recorded(2).recv(0, 2, 3.5))
    (message,) = trace.messages
    assert (message.src, message.dst, message.tag, message.num_bytes, message.matched) == (0, 1, 0, 4, True)
    assert (message.left, message.arrived) == (pytest.approx(2e-3), pytest.approx(3.5e-3))
    assert message.send.waiting == pytest.approx(2e-3)
    assert message.recv.waiting == 0
    assert (message.send.op, message.send.blocking, message.send.group) == ("send", True, (0, 1))


def test_tags_out_of_order():
    """Messages are told apart by their tags, whatever order they are received in."""
    sender = Recorded(2).send(1, 0, 9, blocking=False, waited=5, tag=7).send(1, 1, 9, blocking=False, waited=5, tag=9)
    receiver = Recorded(2).recv(0, 2, 3, tag=9, num_bytes=8).recv(0, 4, 5, tag=7)
    trace = traced(sender, receiver)
    assert {m.tag: (m.send.start, m.recv.start) for m in trace.messages} == {
        7: (0, pytest.approx(4e-3)),
        9: (pytest.approx(1e-3), pytest.approx(2e-3)),
    }


def test_groups_keep_messages_apart():
    """A message of one group is not received in another, though ranks and tag are equal; ranks are the world's."""
    pair = [("1", 0, [2, 0])]  # rank 0 is the second of this group
    receiver = Recorded(3, pair).recv(0, 2, 3, group=1).recv(2, 4, 5)
    sender = Recorded(3, pair).send(1, 2, 3, group=1, num_bytes=8)
    trace = traced(receiver, Recorded(3), sender)
    found = sorted((m.src, m.dst, m.group, m.num_bytes, m.matched) for m in trace.messages)
    assert found == [(2, 0, (0, 1, 2), 4, False), (2, 0, (2, 0), 8, True)]


def test_messages_from_before_the_trace_count():
    """A send whose recv was posted before the trace has no partner in it; the next recv is not taken for its own."""
    trace = traced(Recorded(2).send(1, 0, 1, sequence=4), Recorded(2).recv(0, 2, 3, sequence=5))
    assert ends(trace) == [(0, 1, 0, False), (0, 1, 0, False)]


def test_groups_of_another_generation():
    """What was posted before the group was rebuilt meets nothing of the new group, which has the same name."""
    anew = [("0", 1, [0, 1])]
    trace = traced(
        Recorded(2, anew).recv(1, 0, 1, failed=True).recv(1, 5, 6, group=1, sequence=1),
        Recorded(2, anew).send(0, 5, 6, group=1),
    )
    assert sorted((m.matched, m.left) for m in trace.messages) == [(False, 0), (True, pytest.approx(5e-3))]


def test_received_from_anybody():
    """The source of a recv from anybody is the one that it turned out to be; without one, nothing came."""
    anybody = {"op": "recv", "method": "recv_anysource"}
    receiver = Recorded(3).call(**anybody, start=0, end=0.01, waits=[(0.01, 2, True)], source=2)
    receiver.call(**anybody, start=3, end=3.01, waits=[(3.01, 9, True)], failed=True)
    trace = traced(receiver, Recorded(3), Recorded(3).send(0, 1, 2))
    assert sorted((m.src if m.src is not None else -1, m.matched) for m in trace.messages) == [(-1, False), (2, True)]
    assert of(trace, 0, "recv")[1].ready == inf


def test_a_message_without_a_partner():
    """A recv that nothing came for waited all the time, and so did a send that nobody received."""
    trace = traced(Recorded(2).recv(1, 0, 5, failed=True), Recorded(2).send(0, 0, 5, tag=3, failed=True))
    assert ends(trace) == [(1, 0, 0, False), (1, 0, 3, False)]
    for event in trace.events:
        assert (event.ready, event.waiting, event.failed) == (inf, pytest.approx(5e-3), True)


def test_a_call_that_raised_has_no_partner():
    """What raised took part in nothing: its partner's next call is not taken for its own."""
    trace = traced(
        Recorded(2).send(1, 0, 1, failed=True).send(1, 2, 4, sequence=1),
        Recorded(2).recv(0, 3, 4),
    )
    assert sorted((m.matched, round(m.left * 1e3, 2)) for m in trace.messages) == [(False, 0), (True, 3)]


def test_a_partner_that_was_not_recorded():
    """Of a message whose other rank was not recorded it is not known whether it was matched, nor how long it waited."""
    trace = traced(Recorded(2).send(1, 0, 5), None, missing={1: "it was killed by SIGKILL"})
    (message,) = trace.messages
    assert (message.matched, message.traced, message.send.ready, message.send.waiting) == (False, False, None, 0)
    assert trace.notes() == [
        "Nothing is known of rank 1: it was killed by SIGKILL.",
        "1 message to or from ranks of which nothing is known.",
    ]


def test_immediate_calls():
    """isend and irecv do not block; their waits do. An isend is over when its receiver has it all."""
    sender = Recorded(2).send(1, 0, 9, blocking=False, waited=8)
    trace = traced(sender, Recorded(2).recv(0, 1, 4, blocking=False, waited=2))
    (message,) = trace.messages
    assert (message.send.op, message.recv.op) == ("isend", "irecv")
    assert not message.send.blocking
    assert message.send.end == pytest.approx(4e-3)
    assert [(e.start, e.end) for e in of(trace, 0, "wait")] == [(pytest.approx(8e-3), pytest.approx(9e-3))]
    (wait,) = of(trace, 1, "wait")
    assert (wait.op, wait.blocking, wait.waiting) == ("irecv", True, 0)


def test_an_immediate_call_that_is_never_waited_for():
    """Its end is its partner's; without a partner it is in flight until the end of the trace."""
    lonely = Recorded(2).send(1, 0, 0, blocking=False).send(1, 1, 1, blocking=False, tag=1).row("aten::mm", 5, 6)
    trace = traced(lonely, Recorded(2).recv(0, 2, 3))
    assert [(e.tag, e.end) for e in of(trace, 0, "send")] == [(0, pytest.approx(3e-3)), (1, pytest.approx(6e-3))]


# --- collectives


def test_a_collective_waits_for_its_last_rank():
    """All wait for the last rank to come; one that a rank of the group never joined is not complete."""
    trace = traced(Recorded(2).all_reduce(0, 5).all_reduce(6, 9, failed=True), Recorded(2).all_reduce(3, 5))
    whole, part = trace.collectives
    assert (whole.op, whole.group, whole.complete, whole.came) == ("all_reduce", (0, 1), True, pytest.approx(3e-3))
    assert [event.waiting for event in whole.events] == [pytest.approx(3e-3), 0]
    assert (part.complete, part.came, part.events[0].ready) == (False, None, inf)


@pytest.mark.parametrize("method", ["broadcast", "scatter", "reduce", "gather"])
def test_who_waits_for_whom_in_a_rooted_collective(method):
    """The root, here rank 0, needs everybody; the others need the root alone. No moment is marked for all."""
    starts = (1, 0, 3)
    calls = [Recorded(3).call(method, method, at, at + 0.01, [(at + 0.01, 9, True)], root=0) for at in starts]
    trace = traced(*calls)
    assert {e.rank: round(e.ready * 1e3, 3) for e in trace.events} == {0: 3, 1: 1, 2: 3}
    (collective,) = trace.collectives
    assert (collective.complete, collective.came) == (True, None)
    assert {e.peer for e in trace.events} == {0}


def test_different_collectives_have_no_partner():
    """Where one rank calls all_reduce and the other barrier, neither is taken for the other's partner."""
    trace = traced(Recorded(2).all_reduce(0, 5), Recorded(2).call("barrier", "barrier", 0, 0.01, [(0.01, 5, True)]))
    assert [(c.op, c.complete) for c in trace.collectives] == [("all_reduce", False), ("barrier", False)]


def test_an_asynchronous_collective_ends_with_gloo():
    """Its end is when gloo's thread was done with it, although wait() came later; each group has its own threads."""
    rank = Recorded(1, [("1", 0, [0])])
    rank.all_reduce(0, 9, blocking=False, waited=8, gloo=(1, 3)).all_reduce(0.5, 9, blocking=False, waited=8.5)
    rank.row("gloo:all_reduce", 2, 4)
    trace = traced(rank)
    first, second = of(trace, 0, "collective")
    assert (first.end, first.blocking) == (pytest.approx(3e-3), False)
    assert second.end == pytest.approx(9e-3)
    assert len(of(trace, 0, "wait")) == 2


def test_reduce_scatter_is_made_of_several_all_reduces():
    """gloo runs one all_reduce for each rank; the next call's own is not taken for one of them."""
    rank = Recorded(2).call("reduce_scatter", "reduce_scatter", 0, 0.1, [(8, 9, False)])
    rank.row("gloo:all_reduce", 1, 2, thread=2).row("gloo:all_reduce", 1.1, 3, thread=3)
    rank.all_reduce(4, 9, blocking=False, waited=9, gloo=(5, 6))
    first, second = of(traced(rank, Recorded(2)), 0, "collective")
    assert (first.end, second.end) == (pytest.approx(3e-3), pytest.approx(6e-3))


def ddp_step():
    """One rank's backward with two buckets, as DistributedDataParallel makes it: C++ calls, and waits for, both."""
    rank = Recorded(2)
    rank.row("aten::linear", 0, 1, number=3).row("autograd::engine::evaluate_function: AddmmBackward0", 2, 3, number=3)
    rank.row("c10d::allreduce_", 2.8, 2.9).row("gloo:all_reduce", 3, 6, thread=2)
    rank.row("autograd::engine::evaluate_function: AddmmBackward0", 3.05, 4, number=-1)
    rank.row("c10d::allreduce_", 3.9, 3.95).row("gloo:all_reduce", 4, 8, thread=3)
    rank.row("torch.distributed.ddp.reducer::copy_bucket_to_grad", 6.01, 6.1)
    rank.row("torch.distributed.ddp.reducer::copy_bucket_to_grad", 8.01, 8.1)
    rank.row("Optimizer.step#SGD.step", 8.3, 9, annotated=True)
    rank.flight = [(round(2.85e6), 0, 4096), (round(3.92e6), 0, 2048)]
    return rank


def test_collectives_that_cpp_calls():
    """DDP's buckets have their group and bytes from the flight recorder; the main thread waits for them in gaps."""
    trace = traced(ddp_step(), ddp_step())
    buckets = of(trace, 0, "collective")
    assert [(e.op, e.group, e.num_bytes, e.blocking) for e in buckets] == [
        ("all_reduce", (0, 1), 4096, False),
        ("all_reduce", (0, 1), 2048, False),
    ]
    assert [e.end for e in buckets] == [pytest.approx(6e-3), pytest.approx(8e-3)]
    waits = [(round(e.start * 1e3, 2), round(e.end * 1e3, 2)) for e in of(trace, 0, "wait")]
    assert waits == [(4.0, 6.01), (6.1, 8.01)]
    assert all(c.complete for c in trace.collectives)
    starts = [event.start for event in trace.events]
    assert starts == sorted(starts)


def test_cpp_collective_that_is_waited_for_at_once_blocks():
    """Where nothing happens between a call of C++'s and its end, the rank was blocked."""
    rank = Recorded(1).row("c10d::broadcast_", 0, 0.1).row("gloo:broadcast", 0.2, 2, thread=2).row("aten::mm", 2.01, 3)
    (event,) = of(traced(rank), 0, "collective")
    assert (event.op, event.blocking, event.end, event.group) == ("broadcast", True, pytest.approx(2e-3), ())


def test_waits_of_functional_collectives():
    """torch's own wait for a collective that returns a new tensor is a wait, not computation."""
    rank = Recorded(1).row("_c10d_functional::all_reduce", 0, 0.3).row("c10d::allreduce_", 0.1, 0.2)
    rank.row("gloo:all_reduce", 0.2, 5, thread=2).row("aten::mm", 0.4, 2).row("_c10d_functional::wait_tensor", 2.1, 5.1)
    rank.row("PythonSubclass", 2.2, 5.05)
    trace = traced(rank)
    assert [(e.op, e.end) for e in of(trace, 0, "collective")] == [("all_reduce", pytest.approx(5e-3))]
    assert [(e.start, e.end) for e in of(trace, 0, "wait")] == [(pytest.approx(2.1e-3), pytest.approx(5.1e-3))]
    assert [e.op for e in of(trace, 0, "compute")] == ["mm"]


# --- computation


def test_training_is_seen_as_forward_backward_optimizer():
    """Torch's calls are taken together; those whose gradient is computed later are the forward pass."""
    kinds = [(e.kind, e.op) for e in traced(ddp_step()).events if e.kind not in ("collective", "wait")]
    assert kinds == [
        ("forward", "forward"),
        ("backward", "backward"),
        ("backward", "backward"),
        ("backward", "backward"),
        ("optimizer", "optimizer"),
    ]


def test_computation_is_divided_by_waiting_and_by_long_gaps():
    """Calls that follow each other closely are one block; a blocking call or a long gap begins a new one."""
    rank = Recorded(2).row("aten::mm", 0, 1).row("aten::mm", 1.1, 2).row("aten::add", 3, 4).send(1, 4.01, 4.05)
    rank.row("c10d::send", 4.015, 4.018).row("aten::add", 4.06, 5)
    trace = traced(rank, Recorded(2))
    assert [(e.op, round(e.start * 1e3, 2), round(e.end * 1e3, 2)) for e in of(trace, 0, "compute")] == [
        ("mm", 0, 2),
        ("add", 3, 4),
        ("add", 4.06, 5),
    ]


def test_named_ranges_are_shown_and_looked_into():
    """A range of the program's is an event of its own, and does not hide what is in it."""
    rank = Recorded(1).row("my step", 0, 4, annotated=True).row("inner", 1, 2, annotated=True).row("aten::mm", 1, 3)
    trace = traced(rank)
    assert [e.op for e in of(trace, 0, "range")] == ["my step"]
    assert [e.op for e in of(trace, 0, "compute")] == ["mm"]


# --- clocks


def test_the_offset_of_a_clock_is_found():
    """From messages there and back the offset is found to within half of the quickest round trip."""
    ahead = 5_000_000_000
    rounds = [
        (sent, sent + ahead + there, sent + ahead + there + 10, sent + there + 10 + back)
        for sent, there, back in ((0, 900_000, 100_000), (10**7, 210_000, 190_000), (2 * 10**7, 50_000, 800_000))
    ]
    offset = estimate(rounds)
    assert abs(offset.seconds - 5) <= offset.error == pytest.approx(200e-6)


def test_the_drift_of_a_clock_is_found():
    """A second comparison after the trace tells how much the clock gains; times between are corrected for it."""
    before, after = [(0, 1000, 1000, 0)], [(10**10, 10**10 + 3000, 10**10 + 3000, 10**10)]
    offset = estimate(before, after)
    assert offset.correct(1000) == 0
    assert offset.correct(10**10 + 3000) == pytest.approx(10**10, abs=2)
    assert offset.correct(5 * 10**9 + 2000) == pytest.approx(5 * 10**9, abs=2)


def test_events_of_several_machines_are_put_on_one_clock():
    """Times of a rank whose clock is ahead are moved back by its offset, which the trace states with its error."""
    offsets = {1: Offset(5.0, 0.0002)}
    trace = traced(Recorded(2).send(1, 0, 3), Recorded(2, ahead=5000).recv(0, 2, 3.5), offsets=offsets)
    (message,) = trace.messages
    assert (message.left, message.arrived) == (pytest.approx(2e-3), pytest.approx(3.5e-3))
    assert trace.offsets == {0: Offset(), 1: Offset(5.0, 0.0002)}
    assert trace.notes() == ["The clocks of rank 1 are estimated, right to within 200 µs."]


# --- how it is shown


def test_the_table_adds_up_what_is_alike():
    """Equal op, group, partners and bytes make one row; the waiting is part of the total."""
    sender = Recorded(2).send(1, 0, 3).send(1, 4, 5).all_reduce(6, 8).row("aten::mm", 9, 10)
    receiver = Recorded(2).recv(0, 2, 3).recv(0, 4, 5.5).all_reduce(7, 8)
    table = traced(sender, receiver).table()
    rows = {row.op: row for row in table.rows}
    assert [row.op for row in table.rows] == ["send", "all_reduce", "recv", "compute"]
    send = rows["send"]
    assert (send.group, send.peers, send.num_bytes, send.calls) == ((0, 1), (0, 1), 4, 2)
    assert (send.total, send.waiting, send.median) == (pytest.approx(4e-3), pytest.approx(2e-3), pytest.approx(2e-3))
    assert rows["all_reduce"].waiting == pytest.approx(1e-3)
    assert repr(table).splitlines()[:2] == [
        "op          group  peers  bytes  calls    total  waiting   median",
        "send        all    0 → 1      4      2  4.00 ms  2.00 ms  2.00 ms",
    ]
    assert '<td style="text-align:left">0 → 1</td>' in table._repr_html_()


def test_a_long_table_says_what_it_leaves_out():
    """Only the first rows are shown, with the number of the others."""
    rank = Recorded(2)
    for tag in range(30):
        rank.send(1, tag, tag + 1, num_bytes=tag)
    table = traced(rank, Recorded(2)).table()
    assert len(table.rows) == 30
    assert repr(table).splitlines()[-1] == "and 6 more rows, in .rows"
    assert "and 6 more rows, in .rows" in table._repr_html_()


def test_perfetto_gets_a_process_for_each_rank(tmp_path):
    """The file has a process a rank, slices that nest on each track, and an arrow for each matched message."""
    sender = ddp_step().send(1, 10, 13).send(1, 14, 19, blocking=False, waited=16, tag=1)
    receiver = ddp_step().recv(0, 12, 13.5).recv(0, 15, 18, blocking=False, waited=17, tag=1)
    trace = traced(sender, receiver)
    plain = json.loads(trace.to_chrome(tmp_path / "trace.json").read_text())
    assert json.loads(gzip.decompress(trace.to_chrome(tmp_path / "trace.json.gz").read_bytes())) == plain
    items = plain["traceEvents"]
    names = {(i["pid"], i["args"]["name"]) for i in items if i["name"] == "process_name"}
    assert names == {(0, "rank 0"), (1, "rank 1")}
    slices = [item for item in items if item["ph"] == "X"]
    tracks = {(item["pid"], item["tid"]) for item in slices}
    for track in tracks:
        open_until = []
        for item in sorted((i for i in slices if (i["pid"], i["tid"]) == track), key=lambda i: (i["ts"], -i["dur"])):
            while open_until and open_until[-1] <= item["ts"] + 1e-6:
                open_until.pop()
            assert not open_until or item["ts"] + item["dur"] <= open_until[-1] + 1e-6, (track, item)
            open_until.append(item["ts"] + item["dur"])
    flows = {phase: [i for i in items if i["ph"] == phase] for phase in "sf"}
    assert {i["id"] for i in flows["s"]} == {i["id"] for i in flows["f"]}
    assert len(flows["s"]) == 2
    for item in flows["s"] + flows["f"]:
        assert any(
            (s["pid"], s["tid"]) == (item["pid"], item["tid"]) and s["ts"] <= item["ts"] <= s["ts"] + s["dur"]
            for s in slices
        )


def test_a_trace_that_is_being_recorded():
    """It says so, and looking at it is an error that says when it can be looked at."""
    trace = Trace([0, 1])
    assert repr(trace) == "Trace: ranks 0-1, still being recorded"
    assert trace._repr_png_() is None
    with pytest.raises(
        distlab.ClusterError, match=r"^This trace is still being recorded. Look at it after the with block.$"
    ):
        trace.plot()


def test_an_empty_trace():
    """Nothing recorded is said in words; there is no picture in a notebook, but plot() draws empty lanes."""
    trace = traced(Recorded(2), Recorded(2))
    assert repr(trace) == "Trace: 2 ranks, nothing recorded: nothing of torch's was called"
    assert trace._repr_png_() is None
    assert (trace.seconds, trace.events, trace.messages, trace.table().rows) == (0.0, [], [], ())
    assert trace.plot() is not None


def test_the_repr_counts():
    """In one line: ranks, messages, those without a partner, collectives, and how long it took."""
    trace = traced(
        Recorded(2).send(1, 0, 3).send(1, 4, 5, tag=1).all_reduce(6, 8), Recorded(2).recv(0, 2, 3).all_reduce(7, 8)
    )
    assert repr(trace) == "Trace: 2 ranks, 2 messages, 1 without a partner, 1 collective, 8.00 ms"
    data, size = trace._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert size["width"] == 750
    assert Image.open(io.BytesIO(data)).convert("RGBA").getpixel((0, 0))[3] == 0  # packed, it still has no background


@pytest.mark.parametrize("window", [5, (1,), (2, 1), (9, 12), ("a", "b"), (-5, 0)])
def test_bad_windows(window):
    """A window is two times in milliseconds that overlap the trace."""
    trace = traced(Recorded(1).all_reduce(0, 8))
    with pytest.raises(
        distlab.ArgumentError, match=r"^window must be two times \(start, end\) in milliseconds, start before"
    ):
        trace.plot(window=window)


@pytest.mark.parametrize("ranks", [[2], [], [0, 0], "0", 1])
def test_bad_ranks(ranks):
    """Only ranks that were recorded have lanes."""
    trace = traced(Recorded(2).all_reduce(0, 8), Recorded(2))
    with pytest.raises(
        distlab.ArgumentError, match=r"^ranks must be a list of different ranks of the trace \(0, 1\), got"
    ):
        trace.plot(ranks=ranks)
