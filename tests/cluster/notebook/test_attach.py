"""Engines that ipyparallel has started become ranks, and stay when their cluster is stopped."""

import os
import sys

import ipyparallel
import pytest

import distlab
from distlab.launch import this_host
from distlab.notebook import magics
from tests.cluster.conftest import pid_on_rank, px, stuck, sum_of_ranks, until_told
from tests.processes import until
from tests.refused import raised

AGAIN = "start its engines again there, then call Cluster.attach('default')"


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Two engines of a stock cluster, in a profile of its own."""
    folder = tmp_path_factory.mktemp("ipython")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder))
        with ipyparallel.Cluster(n=2, log_level=40) as client:
            until(lambda: every_engine_answers(client))
            yield client, folder


def every_engine_answers(client):
    """False where a message was lost, as one to an engine that has only just registered may be."""
    try:
        client[:].apply_async(os.getpid).get(timeout=5)
    except TimeoutError:
        return False
    return True


def cells_that_have_ended(rank, world_size):
    from distlab.rank.log import LOG

    return LOG.cells


def test_engines_become_ranks_and_stay(engines):
    """After stop they run on, and can be attached again, also by their connection file."""
    client, folder = engines
    pids = client[:].apply_sync(os.getpid)
    with distlab.Cluster.attach(timeout=20) as cluster:
        assert cluster.run(pid_on_rank) == pids
        raised(distlab.DeadlockError, cluster.run, stuck)
        cluster.push({"kept": 1})
        words = str(raised(distlab.ClusterError, cluster.restart))
        assert words == f"This cluster was started elsewhere: {AGAIN}."
        assert repr(cluster).startswith(
            f"Cluster(2) on {os.uname().nodename}: backend gloo, engines attached\nrank 0: idle"
        )
    assert client[:].apply_sync(os.getpid) == pids
    (path,) = folder.glob("profile_default/security/ipcontroller*-client.json")
    with distlab.Cluster.attach(path, timeout=20) as cluster:
        assert cluster.run(sum_of_ranks) == [1.0] * 2
        assert cluster.pull("kept") == [1] * 2
        before = cluster.run(cells_that_have_ended)
        assert cluster.run(cells_that_have_ended) == [count + 1 for count in before]


def test_a_question_leaves_the_job_of_another_client_alone(engines, tmp_path):
    """It is not interrupted: the engines belong to somebody else."""
    client, _ = engines
    with distlab.Cluster.attach(timeout=20):
        job = client[:].apply_async(until_told, tmp_path)
        until(lambda: [(tmp_path / f"{engine}").exists() for engine in client.ids] == [True, True])
        for _ in range(10):
            assert magics._ask(magics.entry.names_below, "torch") is None
            assert "torch" in magics._names_on_rank_0()
        (tmp_path / "go").touch()
        assert job.get(timeout=20) == ["done", "done"]
        assert "ones" in magics._ask(magics.entry.names_below, "torch")


def test_a_cell_awaits_on_stock_engines(engines, capsys):
    """As on ours; one that never ends is freed, and the next one runs."""
    with distlab.Cluster.attach(timeout=20) as cluster:
        px(cluster, "import asyncio\nawait asyncio.sleep(0)\ndist.barrier()\nprint('awaited')")
        error = raised(distlab.RankTimeout, px, cluster, "await asyncio.sleep(1000)", timeout=0.5)
        assert "\n  ranks 0-1  awaiting  line 2  await asyncio.sleep(1000)\n" in str(error)
        raised(distlab.RankError, px, cluster, "await asyncio.sleep(0)\n1 / 0")
        px(cluster, "print('awaited')")
    assert capsys.readouterr().out == 2 * "ranks 0-1: awaited\n"


def test_what_cannot_be_attached():
    """A profile, a file or a cluster that is not there; at once."""
    words = str(raised(distlab.ClusterError, distlab.Cluster.attach, "nobodys"))
    assert words.startswith(
        "No ipyparallel cluster runs in profile 'nobodys', and no file has this path. "
        "Start one with "
    )


OLD_TORCH = """
import importlib.metadata
genuine = importlib.metadata.version
importlib.metadata.version = lambda name: "1.0.0+cpu" if name == "torch" else genuine(name)
"""
OLD_MESSAGES = """
from distlab.wire import codec
genuine = dict(codec.MESSAGE_CLASSES)
del codec.MESSAGE_CLASSES["Query"]
"""
GENUINE_TORCH = "importlib.metadata.version = genuine"
GENUINE_MESSAGES = "codec.MESSAGE_CLASSES.update(genuine)"


@pytest.mark.parametrize(
    ("break_it", "mend_it", "words"),
    [
        (OLD_TORCH, GENUINE_TORCH, "has torch 1.0.0; this machine has torch "),
        (OLD_MESSAGES, GENUINE_MESSAGES, "has distlab's messages "),
    ],
    ids=["torch", "messages"],
)
def test_an_engine_with_another_version_is_refused(engines, break_it, mend_it, words):
    """It is refused at once, as a host is, and left as it was."""
    client, _ = engines
    client[1].execute(break_it, block=True)
    error = raised(distlab.errors.HostError, distlab.Cluster.attach, timeout=20)
    assert str(error).startswith(
        f"These engines cannot be used. The Python of rank 1 on {os.uname().nodename} {words}"
    )
    assert str(error).endswith(f"They must be the same: install them there, {AGAIN}.")
    client[1].execute(mend_it, block=True)
    with distlab.Cluster.attach(timeout=20) as cluster:
        assert cluster.run(sum_of_ranks) == [1.0] * 2


def test_engines_of_another_python_are_refused_before_code_is_sent(engines, monkeypatch):
    """Code of one Python may crash another one."""
    versions = {**this_host.installed(), "Python": "3.99"}
    monkeypatch.setattr(this_host, "installed", lambda: versions)
    words = str(raised(distlab.errors.HostError, distlab.Cluster.attach, timeout=20))
    found = f"has Python {sys.version_info[0]}.{sys.version_info[1]}; this machine has Python 3.99."
    assert words.startswith(
        f"These engines cannot be used. The Python of ranks 0-1 on {os.uname().nodename} {found}"
    )


def test_a_rank_that_dies_is_reported(engines):
    """It is not replaced, because others start these engines."""
    client, _ = engines
    with distlab.Cluster.attach(timeout=20) as cluster:
        words = str(
            raised(
                distlab.RankDied, cluster.run, lambda rank, n: rank == 0 and os.kill(os.getpid(), 9)
            )
        )
        assert words == f"rank 0 died.\nThe cluster is incomplete: {AGAIN}."
        words = str(raised(distlab.ClusterError, cluster.run, pid_on_rank))
        assert words == f"The cluster is incomplete: rank 0 died. S{AGAIN[1:]}."
    until(lambda: client.ids == [1])
    error = raised(distlab.ClusterError, distlab.Cluster.attach)
    assert (
        str(error)
        == "Ranks are engines 0 to n - 1, and this cluster has [1]: start its engines again."
    )
