"""Ctrl-C at any moment of a cluster's life: the next call works, and nothing is left behind."""

import os
import signal
import threading
from pkgutil import resolve_name

import pytest

import distlab
from tests.cluster.conftest import descriptors_and_threads, kill, our_processes, spin, sum_of_ranks
from tests.processes import wait_until_gone
from tests.refused import raised

pytestmark = [pytest.mark.new_python, pytest.mark.usefixtures("python_handles_sigint")]


@pytest.fixture
def interrupted(monkeypatch):
    """A call that is interrupted whenever a function of ours has returned."""

    def returns_and_interrupts(original):
        def call(*args, **kwargs):
            value = original(*args, **kwargs)
            signal.raise_signal(signal.SIGINT)
            return value

        return call

    def interrupted_after(name, call, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(
                f"distlab.{name}", returns_and_interrupts(resolve_name(f"distlab.{name}"))
            )
            raised(KeyboardInterrupt, call, *arguments)

    return interrupted_after


@pytest.fixture(scope="module")
def at_first(nothing_left):
    """The descriptors and threads of this process when a cluster has come and gone."""
    distlab.Cluster(1).stop()
    return descriptors_and_threads()


# functions on the way of a start; after each of them somebody has to know what it made
STARTS = [
    "notebook.launcher.Launcher.start_server",
    "notebook.starting.ControlChannel",
    "notebook.ranks.Ranks.start",
]


@pytest.mark.parametrize("name", STARTS)
def test_an_interrupted_start_leaves_nothing_or_a_cluster(
    at_first, interrupted, monkeypatch, tmp_path, name
):
    """No process, folder, descriptor or thread is left, and a next start works."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    interrupted(name, distlab.Cluster, 1)
    if distlab.Cluster.current is not None:  # it was ready when the interrupt took effect
        assert distlab.Cluster.current.run(sum_of_ranks) == [0.0]
        distlab.Cluster.current.stop()
    assert wait_until_gone(our_processes) == []
    assert list(tmp_path.iterdir()) == []
    assert all(
        now <= before for now, before in zip(descriptors_and_threads(), at_first, strict=True)
    )


def test_an_interrupted_restart_names_the_next_call(interrupted):
    """Old ranks are gone and new ones are not there; an interrupted stop still stops."""
    cluster = distlab.Cluster(1)
    interrupted("notebook.ranks.Ranks.end", cluster.restart)
    if distlab.Cluster.current is None:
        error = raised(distlab.ClusterError, cluster.run, sum_of_ranks)
        assert (
            str(error)
            == "This cluster did not start. Make one with distlab.Cluster(1), or call restart()."
        )
        cluster.restart()
    assert cluster.run(sum_of_ranks) == [0.0]
    interrupted("launch.reaper.end_processes", cluster.stop)
    assert wait_until_gone(our_processes) == []
    assert repr(cluster) == "Cluster(1) was stopped"


@pytest.fixture
def two(shared):
    return shared.made(n=2, timeout=60)


@pytest.mark.parametrize(
    "name",
    [
        "notebook.cell.Replies",
        "compat.ipyparallel.Replies.unfinished",
        "notebook.freeing.bring_back",
    ],
)
def test_an_interrupted_run_leaves_no_busy_rank(two, interrupted, name):
    """Between sending and waiting, and while ranks are freed, the next run is not delayed."""
    if name != "notebook.cell.Replies":
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    interrupted(name, two.run, spin)
    assert two.run(sum_of_ranks, timeout=30) == [1.0, 1.0]


@pytest.mark.parametrize(
    "name", ["notebook.dead_ranks.DeadRanks.mark_dead", "notebook.processes.Processes.replace"]
)
def test_an_interrupted_heal_can_be_repeated(two, interrupted, name):
    """Also where a dead rank is being replaced; variables of the others stay."""
    two.push({"kept": 5})
    kill(two, 1)
    interrupted(name, two.heal)
    assert two.run(sum_of_ranks) == [1.0, 1.0]
    assert two.pull("kept", ranks=[0]) == [5]
