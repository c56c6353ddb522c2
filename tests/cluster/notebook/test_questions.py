"""Questions for a person's convenience: nothing waits, or is interrupted, for them."""

import pytest

import distlab
from distlab.notebook import magics
from distlab.notebook.cell import Cell, Options
from tests.cluster.conftest import px, sum_of_ranks, until_told
from tests.processes import until
from tests.refused import raised

CLUSTER = {"n": 2, "timeout": 60}


def fails_on_each_rank(rank, world_size):
    raise ValueError(rank)


def test_a_job_is_not_disturbed(usable, tmp_path):
    """Tab, Shift-Tab and a NameError, while the rank runs what ipyparallel's client has sent."""
    job = usable.client[:].apply_async(until_told, tmp_path)
    until(lambda: [(tmp_path / f"{rank}").exists() for rank in range(2)] == [True, True])
    for _ in range(10):
        assert magics._ask(magics.entry.names_below, "torch") is None
        assert magics._ask(magics.entry.help_for, "torch", 0) is None
        assert {"rank", "world_size", "torch", "dist"} <= set(magics._names_on_rank_0())
    (tmp_path / "go").touch()
    assert job.get(timeout=20) == ["done", "done"]
    assert not usable.ranks.broken
    assert "ones" in magics._ask(magics.entry.names_below, "torch")


def test_an_answer_that_does_not_come_is_given_up(usable, monkeypatch, tmp_path):
    """If asking runs code of the learner's that waits, the question is given up."""
    usable.push({"job": until_told, "folder": tmp_path})
    monkeypatch.setattr(magics, "ANSWER_SECONDS", 0.1)
    px(usable, "class Slow:\n    def __dir__(self):\n        return [job(folder)]\nslow = Slow()")
    assert magics._ask(magics.entry.names_below, "slow") is None
    assert not usable.ranks.broken
    (tmp_path / "go").touch()
    assert usable.run(sum_of_ranks) == [1.0, 1.0]


def test_a_group_is_not_rebuilt(usable):
    """A group that the next cell would rebuild stays broken until then."""
    error = raised(distlab.RankError, usable.run, fails_on_each_rank, ranks=[1])
    assert "ValueError: 1" in str(error)
    usable.ranks.broken = True
    assert "ones" in magics._ask(magics.entry.names_below, "torch")
    assert usable.ranks.broken


def test_there_is_nobody_to_ask():
    """Without a cluster nothing is known, and nothing is raised."""
    current, distlab.Cluster.current = distlab.Cluster.current, None
    try:
        assert magics._ask(magics.entry.names_below, "torch") is None
        assert magics._names_on_rank_0() == ()
    finally:
        distlab.Cluster.current = current


def modes(rank, world_size):
    from distlab.debugger.console import CONSOLE
    from distlab.rank.plugins import PLUGINS

    return PLUGINS.checker is None, CONSOLE.after_failure


def test_a_cell_that_cannot_be_sent_leaves_no_mode_behind(usable):
    """Neither checked mode nor the limits of a cell in which a person may stop the ranks."""

    def cannot(view):
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        Cell.send(usable.ranks, [0, 1], cannot, Options(check=True, pauses=True, debug=True))
    assert usable.run(modes) == [(True, False)] * 2
