"""Traces of clusters that end, die, or seem to be on several machines; and %%px --trace in a real kernel."""

import pytest

import distlab

from .test_px import Notebook
from .test_trace import check_order, of, ring


def test_one_rank():
    """A single rank has collectives with itself, and computation."""
    with distlab.Cluster(1) as cluster:
        with cluster.trace() as trace:
            cluster.run(lambda rank, world_size: dist.all_reduce(torch.ones(3) * 2))  # noqa: F821
        assert [(c.op, c.group, c.complete) for c in trace.collectives] == [("all_reduce", (0,), True)]
        assert of(trace, 0, "compute")
        check_order(trace)


def test_a_rank_that_dies_inside_of_a_trace():
    """What it had recorded is lost, and the trace says so; the others' part is kept."""
    with distlab.Cluster(3) as cluster:
        with cluster.trace() as trace:
            cluster.run(lambda rank, world_size: torch.zeros(1))  # noqa: F821
            with pytest.raises(distlab.RankDied):
                cluster.run(lambda rank, world_size: __import__("os")._exit(3), ranks=[1])
        assert list(trace.missing) == [1]
        assert "ended with exit status 3" in trace.missing[1]
        assert {event.rank for event in trace.events} == {0, 2}
        with cluster.trace() as trace:
            with pytest.raises(distlab.RankDied):
                cluster.run(lambda rank, world_size: __import__("os")._exit(3), ranks=[1])
            cluster.run(ring, 1)
        assert trace.missing == {1: "its process ended, and another took its place"}
        assert [(m.src, m.dst, m.matched, m.traced) for m in trace.messages if m.matched] == [(2, 0, True, True)]
        assert all(not m.traced for m in trace.messages if not m.matched)


def test_restart_and_stop_inside_of_a_trace():
    """Nothing can be told then, which is said; the with block ends without an error."""
    with distlab.Cluster(2) as cluster:
        with cluster.trace() as trace:
            cluster.run(ring)
            cluster.restart()
        reason = "the cluster was stopped before the end of the trace"
        assert trace.missing == {0: reason, 1: reason}
        assert repr(trace).endswith(f"nothing recorded\nNothing is known of ranks 0-1: {reason}.")
        with cluster.trace() as trace:
            cluster.run(ring)
        assert len(trace.messages) == 6
        with cluster.trace() as trace:
            cluster.stop()
        assert trace.missing == {0: reason, 1: reason}
        with pytest.raises(distlab.ClusterError, match=r"^This cluster was stopped\. Make one"), cluster.trace():
            pass


AHEAD = 5_000_000_000  # ns


def skew(rank, world_size):
    """Make this rank believe that it is on another machine, whose clock is ahead."""
    import time

    from distlab import clock, tracing

    stop = tracing.stop
    clock.name = lambda: "another machine"
    clock.now = lambda: time.time_ns() + AHEAD

    def skewed_stop():
        told = stop()
        return {**told, "begin": told["begin"] + AHEAD}

    tracing.stop = skewed_stop


def test_clocks_of_several_machines():
    """The offset of another machine's clock is found by messages, stated with its error, and taken out of the times."""
    with distlab.Cluster(3) as cluster:
        cluster.run(skew, ranks=[2])
        with cluster.trace() as trace:
            cluster.run(ring)
        offset = trace.offsets[2]
        assert abs(offset.seconds - 5) <= offset.error < 0.1
        assert trace.offsets[0] == trace.offsets[1] == type(offset)()
        assert "The clocks of rank 2 are estimated" in trace.notes()[0]
        assert trace.seconds < 5
        assert len(trace.messages) == 9
        for message in trace.messages:
            assert message.recv.end >= message.send.start - 3 * offset.error


def stay_silent(rank, world_size):
    """Answer no more when clocks are compared."""
    from distlab import clock

    def fail(peer):
        raise RuntimeError("no answer")

    clock.pong = fail


def test_clocks_that_cannot_be_compared():
    """After a trace, its first comparison is enough; before one, the trace is refused. The group is sound then."""
    with distlab.Cluster(2, timeout=3) as cluster:
        cluster.run(skew, ranks=[1])
        with cluster.trace() as trace:
            cluster.run(ring)
            cluster.run(stay_silent, ranks=[1])
        assert (len(trace.messages), trace.missing, trace.offsets[1].drift) == (6, {}, 0.0)
        refusal = "^The clocks of the ranks' machines cannot be compared: .*no answer"
        with pytest.raises(distlab.ClusterError, match=refusal), cluster.trace():
            pass
        cluster.run(ring)
        with cluster.trace(ranks=[1]) as trace:
            cluster.run(ring)
        assert len(trace.messages) == 6


@pytest.fixture(scope="module")
def notebook(nothing_left):
    """A kernel with a cluster of two ranks."""
    book = Notebook()
    book.run("%load_ext distlab\nimport distlab\ncluster = distlab.Cluster(2, timeout=20)")
    assert book.status == "ok"
    yield book
    book.run("cluster.stop()")
    book.client.stop_channels()
    book.manager.shutdown_kernel(now=True)


def test_px_trace(notebook):
    """%%px --trace shows what the cell wrote, then the picture, and leaves the trace as cluster.last_trace."""
    messages = notebook.run("%%px --trace\nprint('hello')\ndist.all_reduce(torch.ones(1))")
    texts = [message["data"]["text/plain"] for message in messages]
    assert texts[0] == "ranks 0-1: hello"
    assert texts[1].startswith("Trace: 2 ranks, 1 collective, ")
    assert messages[1]["data"]["image/png"].startswith("iVBOR")
    assert messages[1]["metadata"]["image/png"]["width"] == 750
    assert notebook.text("cluster.last_trace").startswith("Trace: 2 ranks, 1 collective, ")
    assert notebook.text("%%px\nprint('no picture')") == "ranks 0-1: no picture"


def test_px_trace_of_some_ranks_and_of_nothing(notebook):
    """--targets are the ranks that are traced; without an event there are words instead of a picture."""
    (message,) = notebook.run("%%px --trace --targets 1\nx = 1")
    assert message["data"] == {"text/plain": "Trace: 1 rank, nothing recorded: nothing of torch's was called"}


def test_px_trace_of_a_cell_that_fails(notebook):
    """The picture comes before the error."""
    messages = notebook.run("%%px --trace\ndist.barrier()\n1 / 0")
    assert [message["type"] for message in messages] == ["display_data", "error"]
    assert messages[0]["data"]["text/plain"].startswith("Trace: 2 ranks, 1 collective, ")
    assert messages[1]["ename"] == "RankError"


def test_px_trace_refuses_noblock(notebook):
    """A cell that is not waited for cannot be traced."""
    text = notebook.text("%%px --trace --noblock\n1")
    assert text == "ArgumentError: --trace must be without --noblock, got '--noblock'. Leave one of them out."
    assert notebook.text("%%px --trace\n1\n").startswith("ranks 0-1 -> 1\nTrace: 2 ranks, nothing recorded")
