"""A learner's files with names of imported modules; engines of ipyparallel's launcher."""

import importlib
import os
import sys

import pytest

import distlab
from tests.cluster.conftest import dies, pid_on_rank, stop_what_runs
from tests.refused import raised

pytestmark = pytest.mark.new_python

NAMES = ("random", "queue", "token", "select", "socket", "types", "signal", "json", "tempfile")


@pytest.fixture
def beside_files(tmp_path, monkeypatch):
    """A cluster that is started in a folder with files of these names."""

    def cluster(names, **options):
        for name in names:
            (tmp_path / f"{name}.py").write_text(
                "raise RuntimeError('the learner wrote this file')\n"
            )
        (tmp_path / "helper.py").write_text("VALUE = 7\n")
        # a cluster that replaces another one keeps its fork server, and that server's folder
        stop_what_runs()
        return distlab.Cluster(**options)

    monkeypatch.chdir(tmp_path)
    return cluster


def helper_and_safe_path(rank, world_size):
    return importlib.import_module("helper").VALUE, os.environ.get("PYTHONSAFEPATH")


def test_ranks_start_beside_files_with_the_names_of_modules(beside_files):
    """Controller and ranks import Python's modules; the learner's code finds its own files."""
    with beside_files([*NAMES, "torch", "distlab"], n=1) as cluster:
        assert cluster.run(helper_and_safe_path) == [(7, None)]


def test_with_the_stock_launcher_a_death_needs_a_restart(beside_files):
    """Its engines start there too, and cannot be replaced one by one: every call says so."""
    names = NAMES if sys.version_info >= (3, 11) else ()  # Python 3.10 has no PYTHONSAFEPATH
    killed = (
        "rank 1 was killed by SIGKILL (often by the system when memory runs out, or by kill -9)"
    )
    with beside_files(names, n=2, timeout=30, engines="local") as cluster:
        assert cluster.run(helper_and_safe_path) == [(7, None)] * 2
        place = f"conftest.py:{dies.__code__.co_firstlineno + 3} in dies"
        assert str(raised(distlab.RankDied, cluster.run, dies)).splitlines() == [
            f"{killed}.",
            "What the other rank did last:",
            f"  rank 0  barrier()  {place}  dist.barrier()",
            "The cluster is incomplete: call cluster.restart() for new ranks.",
        ]
        advice = "Call cluster.restart() for new ranks."
        for call in (lambda: cluster.run(pid_on_rank), cluster.heal):
            assert (
                str(raised(distlab.ClusterError, call))
                == f"The cluster is incomplete: {killed}. {advice}"
            )
