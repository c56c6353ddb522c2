"""A learner's files with the names of modules that Python or distlab imports."""

import importlib
import os
import sys

import pytest

import distlab
from tests.cluster.conftest import stop_what_runs
from tests.processes import python

NAMES = ("random", "queue", "token", "select", "socket", "types", "signal", "json", "tempfile")
with_safe_path = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")


def helper_and_safe_path(rank, world_size):
    return importlib.import_module("helper").VALUE, os.environ.get("PYTHONSAFEPATH")


@pytest.mark.parametrize(
    ("engines", "names"),
    [("fork", (*NAMES, "torch", "distlab")), pytest.param("local", NAMES, marks=with_safe_path)],
)
def test_ranks_start_beside_files_with_the_names_of_modules(engines, names, tmp_path, monkeypatch):
    """The controller and the ranks import Python's own modules; the learner's code finds the files beside it."""
    for name in names:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the learner wrote this file')\n")
    (tmp_path / "helper.py").write_text("VALUE = 7\n")
    monkeypatch.chdir(tmp_path)
    stop_what_runs()  # a cluster that replaces another one keeps its fork server, and that server's folder
    with distlab.Cluster(1, engines=engines) as cluster:
        assert cluster.run(helper_and_safe_path) == [(7, None)]


def test_a_file_that_was_imported_by_mistake_is_named(tmp_path):
    """Where such a file breaks this process, the error names the file and says what to do."""
    file = tmp_path / "cloudpickle.py"
    file.write_text("value = 1\n")
    done = python("-c", "import distlab; distlab.Cluster(1)", cwd=tmp_path)
    reason = "distlab.Cluster cannot be imported: module 'cloudpickle' has no attribute 'Pickler'."
    advice = f"{file} was imported instead of the module of that name: rename this file, then restart the kernel."
    assert f"distlab.errors.ClusterError: {reason}\n{advice}\n" in done.stderr
