"""Processes that `%load_ext distlab` starts in a notebook before a cluster is asked for, in real kernels."""

import pytest

from tests.cluster.conftest import Notebook, processes_of

pytestmark = pytest.mark.new_python

LOADED = "%load_ext distlab\nimport os, distlab\nfrom distlab.client import ahead\n"


@pytest.fixture
def kernel(nothing_left):
    """A new kernel, after which nothing is left."""
    book = Notebook()
    yield book
    book.close()


def servers(book):
    """Process numbers of the fork servers, once what was started ahead is ready; their children have their names."""
    book.run("import time\nwhile ahead.BEGUN and not ahead.BEGUN[0]._processes: time.sleep(0.01)")
    named = [one for one in processes_of(f"{book.pid}-") if "distlab.launch.fork_server" in " ".join(one.cmdline())]
    return {one.pid for one in named if one.ppid() == book.pid}


def test_a_cluster_takes_them(kernel):
    """The ranks are forked by the process that was there before, and another cluster starts without it."""
    kernel.run(LOADED)
    (before,) = servers(kernel)
    assert kernel.text("cluster = distlab.Cluster(2)") == "2 ranks are ready (gloo)."
    parents = kernel.text("%px os.getppid() if 'os' in globals() else __import__('os').getppid()")
    assert parents == f"ranks 0-1 -> {before}"
    assert servers(kernel) == {before}
    kernel.run("cluster.stop()")
    assert kernel.text("cluster = distlab.Cluster(2)") == "2 ranks are ready (gloo)."
    assert before not in servers(kernel)


def test_ranks_get_the_environment_and_the_folder_of_now(kernel, tmp_path):
    """Where either has changed since, they are not used, and end."""
    kernel.run(LOADED)
    (before,) = servers(kernel)
    kernel.run(f"os.environ['OF_NOW'] = 'yes'\nos.chdir({str(tmp_path)!r})\ncluster = distlab.Cluster(2)")
    assert kernel.text("%px __import__('os').environ['OF_NOW']") == "ranks 0-1 -> 'yes'"
    assert kernel.text("%px __import__('os').getcwd()") == f"ranks 0-1 -> {str(tmp_path)!r}"
    assert before not in servers(kernel)


def test_a_cluster_of_another_kind_ends_them(kernel):
    """Engines that are no forks take nothing of them."""
    kernel.run(LOADED)
    kernel.run('cluster = distlab.Cluster(1, engines="local")')
    assert kernel.status == "ok"
    assert servers(kernel) == set()


def test_they_end_when_nobody_comes(kernel):
    """After some idle time; a cluster then starts as always."""
    kernel.run("from distlab.client import ahead; ahead.IDLE_SECONDS = 1.0")
    kernel.run(LOADED)
    kernel.run("ahead.BEGUN[0]._thread.join()")  # which ends them
    assert processes_of(f"{kernel.pid}-") == []
    assert kernel.text("cluster = distlab.Cluster(2)") == "2 ranks are ready (gloo)."
