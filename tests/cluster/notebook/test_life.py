"""Starting, replacing, restarting and ending clusters, and what is left of them."""

import os
import re
import socket
import sys
import textwrap
import time

import ipyparallel
import psutil
import pytest

import distlab
from distlab import machine
from distlab.diagnosis.advice import END_SOME_PROCESSES
from distlab.launch import reaper
from distlab.notebook import settings
from distlab.notebook.cell import Cell, Options
from tests.cluster import refuses_forks
from tests.cluster.conftest import (
    descriptors_and_threads,
    kill,
    our_processes,
    pid_on_rank,
    sum_of_ranks,
)
from tests.processes import controller_of, python_that_goes_on, wait_until_gone
from tests.refused import raised


@pytest.mark.new_python
def test_starts_restarts_and_stops_leave_no_descriptor_and_no_thread():
    """A cluster is restarted, replaced, restarted and stopped: all is as before it.

    restart() gives new processes with the same settings, stop() may be called twice, and the old
    object says why it cannot be used; so does a cell whose results are lost.
    """
    distlab.Cluster(1).stop()
    before = descriptors_and_threads()
    first = distlab.Cluster(2, timeout=7, threads=2)
    running, old = descriptors_and_threads(), first.run(pid_on_rank)
    first.push({"x": 1})
    first.restart()
    assert not set(old) & set(first.run(pid_on_rank))
    assert first.timeout == 7
    assert first.run(lambda rank, world_size: torch.get_num_threads()) == [2, 2]  # noqa: F821
    raised(distlab.RankError, first.pull, "x")
    second = distlab.Cluster(1)
    assert not set(old) & set(psutil.pids())
    assert repr(first) == "Cluster(2) was replaced by Cluster(1)"
    with pytest.raises(
        distlab.ClusterError, match=r"Cluster\(1\). Make one with distlab.Cluster\(2\), or"
    ):
        first.run(pid_on_rank)
    assert second.run(sum_of_ranks) == [0.0]
    first.restart()
    assert descriptors_and_threads() == running
    folder = first.ranks._processes.folder
    assert os.path.isdir(folder)
    pending = Cell.send(first.ranks, [0], lambda view: view.apply_async(time.sleep, 60), Options())
    first.stop()
    first.stop()
    error = raised(distlab.ClusterError, pending.finish)
    assert (
        str(error)
        == "The cluster was stopped before this cell had finished, so its results are lost."
    )
    del pending, error
    assert descriptors_and_threads() == before
    assert not os.path.exists(folder)
    assert wait_until_gone(our_processes) == []
    for use in (
        lambda: first.run(pid_on_rank),
        lambda: first.pull("x"),
        lambda: first.client,
        first.heal,
    ):
        advice = "Make one with distlab.Cluster(2), or call restart()."
        assert str(raised(distlab.ClusterError, use)) == f"This cluster was stopped. {advice}"
    assert repr(first) == "Cluster(2) was stopped"


def seen_on_rank(rank, world_size):
    return os.environ.get("OF_NOW"), os.getcwd()


@pytest.mark.new_python
def test_a_cluster_in_place_of_another_has_the_environment_and_the_folder_of_now(
    monkeypatch, tmp_path
):
    """The process that forked the ranks of the other one has those of then, and so ends."""
    first = distlab.Cluster(1)
    server = first.ranks._processes.servers.to(0).process
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "which no rank gets")
    second = distlab.Cluster(1)
    assert second.ranks._processes.servers.to(0).process is server
    monkeypatch.setenv("OF_NOW", "yes")
    with distlab.Cluster(1) as third:
        assert third.run(seen_on_rank) == [("yes", os.getcwd())]
        monkeypatch.chdir(tmp_path)
        third.restart()
        assert third.run(seen_on_rank) == [("yes", str(tmp_path))]


def test_an_idle_cluster_is_left_alone():
    """The controller's heart beats 40 times a second only while engines come."""
    (heart,) = controller_of(distlab.Cluster(1)).children()
    before, deadline = -100, time.monotonic() + 60
    while (now := heart.num_ctx_switches().voluntary) > before + 20:
        assert time.monotonic() < deadline
        before = now
        time.sleep(1)


def test_modules_that_are_imported_once_for_all_ranks():
    """Every rank has what is preloaded; a cluster that preloads nothing has none of it."""
    with distlab.Cluster(2, preload=["wave"]) as cluster:
        assert cluster.run(lambda rank, world_size: "wave" in sys.modules) == [True, True]
        cluster.restart()
        assert cluster.run(lambda rank, world_size: "wave" in sys.modules) == [True, True]
        with distlab.Cluster(2) as other:
            assert other.run(lambda rank, world_size: "wave" in sys.modules) == [False, False]


def test_a_deadlock_ends_by_the_groups_timeout(monkeypatch):
    """A timeout that is over before a deadlock is proven still names who waited."""

    def deadlock(rank, world_size):
        if rank < 2:
            dist.recv(torch.zeros(1), src=1 - rank)  # noqa: F821

    monkeypatch.setattr("distlab.notebook.seconds.UNMOVED", 60)
    with distlab.Cluster(3, timeout=2) as cluster:
        expected = max(1, machine.cores() // 3)
        seen = cluster.run(
            lambda rank, world_size: (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])  # noqa: F821
        )
        assert seen == [(expected, str(expected))] * 3
        error = raised(distlab.RankError, cluster.run, deadlock)
    line = deadlock.__code__.co_firstlineno + 2
    assert " raised RuntimeError: Timed out waiting 2000ms for recv operation to complete\n" in str(
        error
    )
    assert (
        f"   test_life.py:{line} in deadlock   "
        "dist.recv(torch.zeros(1), src=1 - rank)  # noqa: F821\n"
    ) in str(error)
    assert str(error).endswith(
        "\nRank 2 finished.\n"
        "The process group is rebuilt and variables are kept: "
        "change the cell and run it again."
    )


SCRIPT = """
    import sys
    import distlab
    cluster = distlab.Cluster(2, engines={engines!r})
    print(cluster.ranks._processes.tag, cluster.ranks._processes.folder, flush=True)
    {then}
"""


def run_script(then, engines=None):
    return python_that_goes_on(textwrap.dedent(SCRIPT).format(then=then, engines=engines))


def assert_nothing_is_left(tag, folder):
    assert wait_until_gone(lambda: reaper.processes_of(tag)) == []
    assert wait_until_gone(lambda: [folder] if os.path.exists(folder) else []) == []


@pytest.mark.new_python
def test_a_script_that_forgets_stop_ends_cleanly_and_each_side_imports_only_what_it_needs():
    """The notebook needs no torch for it, and a rank nothing of the notebook's side."""
    seen = (
        "{m.split('.')[0] for m in sys.modules} & "
        "{'torch', 'matplotlib', 'sklearn', 'pandas', 'pooch'}"
    )
    loaded = "lambda rank, n: [m for m in __import__('sys').modules if m.startswith(NOT_ON_A_RANK)]"
    folders = tuple(f"distlab.{folder}" for folder in ("notebook", "measure", "plotting"))
    names = ("matplotlib", "sklearn", "pandas", "pooch", "ipyparallel.cluster", *folders)
    again = "distlab.Cluster(1, init_method='file').heal()"
    process = run_script(
        f"NOT_ON_A_RANK = {names}; print(cluster.run({loaded})); {again}; print({seen}, flush=True)"
    )
    out, _ = process.communicate(timeout=200)
    first, *others = out.splitlines()
    assert (process.returncode, others) == (0, ["[[], []]", "set()"])
    assert_nothing_is_left(*first.split())


@pytest.mark.new_python
@pytest.mark.parametrize("engines", [None, "mpi"])
def test_a_killed_notebook_leaves_nothing_behind(engines):
    """After SIGKILL, every process and file of the cluster is gone, a rank's child too."""
    child = (
        "cluster.run(lambda rank, n: "
        "__import__('subprocess').Popen(['sleep', '600']).pid, ranks=[1])"
    )
    process = run_script(f"print({child}, flush=True); sys.stdin.read()", engines)
    tag, folder = process.stdout.readline().split()
    process.stdout.readline()  # the child is there
    names = [found.name() for found in reaper.processes_of(tag)]
    assert len(names) >= 4
    assert any(name.startswith("mpiexec") for name in names) == (engines == "mpi"), names
    process.kill()
    process.wait()
    assert_nothing_is_left(tag, folder)


@pytest.mark.new_python
def test_a_notebook_that_is_killed_while_it_stops_leaves_nothing_behind():
    kill = (
        "from distlab.launch import reaper; import os; "
        "reaper.end_processes = lambda *_: os.kill(os.getpid(), 9)"
    )
    process = run_script(f"{kill}; cluster.stop()")
    tag, folder = process.stdout.readline().split()
    assert process.wait() == -9
    assert_nothing_is_left(tag, folder)


@pytest.mark.new_python
def test_a_server_of_a_host_that_is_asked_to_end_leaves_no_folder():
    """As by `scancel`; the next call starts another one."""
    with distlab.Cluster(hosts={"localhost": 1}) as cluster:
        (folder,) = cluster.run(lambda rank, world_size: os.environ["IPP_PROFILE_DIR"])
        cluster.ranks._processes.servers.to(0).process.terminate()
        assert_nothing_is_left("", folder)
        assert cluster.run(sum_of_ranks) == [0.0]


@pytest.mark.new_python
def test_a_port_that_another_program_takes_first(monkeypatch):
    """A controller that finds its port taken ends; the cluster starts with other ports."""
    original, attempts = settings.controller_arguments, []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)

        def first_with_a_taken_port(*where):
            attempts.append(original(*where))
            if len(attempts) > 1:
                return attempts[-1]
            free = re.search(r"(?<=ports=)\d+", " ".join(attempts[0]))[0]
            return tuple(word.replace(free, str(taken.getsockname()[1])) for word in attempts[0])

        monkeypatch.setattr(settings, "controller_arguments", first_with_a_taken_port)
        with distlab.Cluster(1) as cluster:
            assert cluster.run(sum_of_ranks) == [0.0]
    assert len(attempts) == 2


def test_an_engine_that_registers_while_the_client_connects(monkeypatch):
    """ipyparallel's client never hears of it: its subscription is not there yet."""
    monkeypatch.setattr(ipyparallel.Client, "_register_engine", lambda client, message: None)
    with distlab.Cluster(2) as cluster:
        assert cluster.run(sum_of_ranks) == [1, 1]


def test_a_system_that_refuses_another_process(monkeypatch, tmp_path):
    """The error says so, the other rank lives on, and later the cluster is whole again."""
    full = tmp_path / "full"
    monkeypatch.setenv(refuses_forks.FILE, str(full))
    with distlab.Cluster(2, preload=[refuses_forks.__name__]) as cluster:
        cluster.push({"kept": 5})
        kill(cluster, 1)
        full.touch()
        error = raised(distlab.ClusterError, cluster.heal)
        assert str(error) == (
            "New processes did not start: a process could not be forked ([Errno 11] Resource "
            f"temporarily unavailable). {END_SOME_PROCESSES} Then call cluster.restart()."
        )
        full.unlink()
        cluster.heal()
        assert cluster.pull("kept", ranks=[0]) == [5]
        assert cluster.run(lambda rank, n: rank) == [0, 1]
