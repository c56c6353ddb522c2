"""Traces of clusters that end or die; and %%px --trace in a real kernel."""

import pytest

import distlab
from tests.cluster.conftest import dies
from tests.cluster.traces.test_trace import ring


def test_a_rank_dies_and_the_cluster_is_stopped_inside_of_a_trace():
    """What is lost is said, the others' part is kept, and the with block ends without an error."""
    with distlab.Cluster(3) as cluster:
        with cluster.trace() as trace:
            with pytest.raises(distlab.RankDied):
                cluster.run(dies, ranks=[1])
            cluster.run(ring, 1)
        assert trace.missing == {1: "its process ended, and another took its place"}
        assert {event.rank for event in trace.events} == {0, 2}
        assert [(m.src, m.dst, m.matched, m.traced) for m in trace.messages if m.matched] == [
            (2, 0, True, True)
        ]
        assert all(not m.traced for m in trace.messages if not m.matched)
        with cluster.trace() as trace:
            cluster.stop()
        reason = "the cluster was stopped meanwhile"
        assert trace.missing == {0: reason, 1: reason, 2: reason}
        assert repr(trace).endswith(
            f"nothing recorded\nNothing was recorded on ranks 0-2: {reason}."
        )
        with (
            pytest.raises(distlab.ClusterError, match=r"^This cluster was stopped\. Make one"),
            cluster.trace(),
        ):
            pass


def test_px_trace(notebook):
    """%%px --trace shows the cell's output, then the picture; words if torch was not called."""
    wrote, drew = notebook.run("%%px --trace\nprint('hello')\ndist.all_reduce(torch.ones(1))")
    assert wrote["data"]["text/plain"] == "ranks 0-1: hello"
    assert drew["data"]["image/png"].startswith("iVBOR")
    (message,) = notebook.run("%%px --trace --targets 1\nx = 1")
    assert message["data"] == {
        "text/plain": "Trace: 1 rank, nothing recorded: torch was not called"
    }


def test_px_trace_of_a_cell_that_fails(notebook):
    """The picture comes before the error."""
    messages = notebook.run("%%px --trace\ndist.barrier()\n1 / 0")
    assert [message["type"] for message in messages] == ["display_data", "error"]
    assert messages[0]["data"]["text/plain"].startswith("Trace: 2 ranks, 1 collective, ")
    assert messages[1]["ename"] == "RankError"
