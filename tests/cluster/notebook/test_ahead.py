"""Processes that wait for a notebook's next cluster, in real kernels."""

import pytest

from tests.cluster.conftest import Notebook, processes_of

LOADED = "%load_ext distlab\nimport os, distlab\nfrom distlab.notebook import ahead\n"


@pytest.fixture
def kernel(nothing_left):
    """A new kernel, after which nothing is left."""
    book = Notebook()
    yield book
    book.close()


# by the command lines of those that are started, and of those that tests/warm_process.py forks
SERVERS = ("distlab.launch.fork_server", "multiprocessing.forkserver")


def servers(book):
    """Process numbers of the fork servers, once what was started ahead is ready."""
    book.run("import time\nwhile ahead.BEGUN and not ahead.BEGUN[0]._processes: time.sleep(0.01)")
    processes = {one.pid: one for one in processes_of(f"{book.pid}-")}
    found = set()
    for pid, one in processes.items():
        line = " ".join(one.cmdline())
        is_server = any(name in line for name in SERVERS)
        if is_server and one.ppid() not in processes:  # and no rank or controller of one
            found.add(pid)
    return found


@pytest.mark.new_python
def test_a_cluster_takes_them(kernel):
    """The ranks are forked by the process that was there before."""
    kernel.run(LOADED)
    (before,) = servers(kernel)
    assert kernel.text("cluster = distlab.Cluster(2)") == "2 ranks are ready (gloo)."
    parents = kernel.text("%px os.getppid() if 'os' in globals() else __import__('os').getppid()")
    assert parents == f"ranks 0-1 -> {before}"
    assert servers(kernel) == {before}


PARENTS = "%px os.getppid() if 'os' in globals() else __import__('os').getppid()"


@pytest.mark.new_python
@pytest.mark.parametrize("stop", ["cluster.stop()", "with cluster:\n    pass"])
def test_a_cluster_after_a_stop_takes_those_of_the_one_before(kernel, stop):
    """Its ranks are forked by the same process, and nothing is left of those before."""
    kernel.run("import distlab\nfrom distlab.notebook import ahead\ncluster = distlab.Cluster(2)")
    (server,) = servers(kernel)
    own = len(processes_of(f"{kernel.pid}-"))
    kernel.run("%px import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    kernel.run("%px variable = 1")
    assert len(processes_of(f"{kernel.pid}-")) == own + 2
    kernel.run(stop)
    assert len(processes_of(f"{kernel.pid}-")) == own - 2
    assert kernel.text("cluster.run(len)").startswith("ClusterError: This cluster was stopped.")
    assert kernel.text("cluster = distlab.Cluster(4)") == "4 ranks are ready (gloo)."
    assert kernel.text(PARENTS) == f"ranks 0-3 -> {server}"
    assert kernel.text("%px 'variable' in globals()") == "ranks 0-3 -> False"
    kernel.run("cluster.restart()\ncluster.stop()\ncluster.stop()\ncluster.restart()")
    assert kernel.text(PARENTS) == f"ranks 0-3 -> {server}"


DIES = """\
import os, time
os.kill({server}, 9)
while ahead.BEGUN[0]._processes.can_fork: time.sleep(0.01)
cluster = distlab.Cluster(2)"""
CHANGES = {
    "another environment": "import os\nos.environ['OF_NOW'] = 'yes'\ncluster = distlab.Cluster(2)",
    "other modules": "cluster = distlab.Cluster(2, preload=['colorsys'])",
    "a server that has died": pytest.param(DIES, marks=pytest.mark.new_python),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_cluster_after_a_stop_starts_its_own_where_it_must(kernel, change):
    """What was kept has other surroundings or is dead: it ends, and the cluster is as any other."""
    kernel.run(
        "import distlab\n"
        "from distlab.notebook import ahead\n"
        "cluster = distlab.Cluster(2)\n"
        "cluster.stop()"
    )
    (server,) = servers(kernel)
    assert kernel.text(change.format(server=server)) == "2 ranks are ready (gloo)."
    assert kernel.text("cluster.run(lambda rank, world_size: world_size)") == "[2, 2]"
    assert server not in servers(kernel)
    kernel.run("cluster.stop()")
    assert len(servers(kernel)) == 1


def test_kept_processes_end_when_nobody_comes(kernel):
    """After the same idle time as those that were started ahead."""
    kernel.run(
        "import distlab\n"
        "from distlab.notebook import ahead\n"
        "ahead.IDLE_SECONDS = 0.0\n"
        "cluster = distlab.Cluster(2)"
    )
    kernel.run("cluster.stop()\nahead.BEGUN[0].join()")
    assert processes_of(f"{kernel.pid}-") == []
    assert kernel.text("cluster = distlab.Cluster(2)") == "2 ranks are ready (gloo)."


def test_a_forked_process_leaves_them_to_the_notebook(kernel):
    """They belong to the process that started them: a cluster in another one starts its own."""
    kernel.run(
        "import os, distlab\n"
        "from distlab.notebook import ahead\n"
        "cluster = distlab.Cluster(2)\n"
        "cluster.stop()"
    )
    (server,) = servers(kernel)
    forks = (
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(7 if ahead.take_for_cluster(cluster._plan) is None else 1)\n"
    )
    assert (
        kernel.text(f"{forks}print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))").strip()
        == "7"
    )
    assert kernel.text("cluster = distlab.Cluster(2)") == "2 ranks are ready (gloo)."
    assert servers(kernel) == {server}


@pytest.mark.new_python
def test_ranks_get_the_environment_and_the_folder_of_now(kernel, tmp_path):
    """Where either has changed since, they are not used, and end."""
    kernel.run(LOADED)
    (before,) = servers(kernel)
    kernel.run(
        f"os.environ['OF_NOW'] = 'yes'\nos.chdir({str(tmp_path)!r})\ncluster = distlab.Cluster(2)"
    )
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
    kernel.run("from distlab.notebook import ahead; ahead.IDLE_SECONDS = 1.0")
    kernel.run(LOADED)
    kernel.run("ahead.BEGUN[0].join()")  # which ends them
    assert processes_of(f"{kernel.pid}-") == []
    assert kernel.text("cluster = distlab.Cluster(2)") == "2 ranks are ready (gloo)."
