"""Starting, replacing, restarting and ending clusters, and what is left of them."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

import distlab
from distlab import guard

from .conftest import our_processes, pid_on_rank, sum_of_ranks, wait_until_gone


@pytest.mark.parametrize("n", [1, 3])
def test_a_cluster_of_any_size_works_and_leaves_nothing(n):
    """1 and 3 ranks start, add up, and end without a process left."""
    with distlab.Cluster(n) as cluster:
        assert cluster.run(sum_of_ranks) == [float(sum(range(n)))] * n
        folder = cluster.ranks._processes.folder
        assert os.path.isdir(folder)
    assert wait_until_gone(our_processes) == []
    assert not os.path.exists(folder)


@pytest.mark.parametrize("init_method", ["env", "file"])
def test_every_init_method_builds_and_rebuilds(init_method):
    """env:// and file:// are really used, more than once on the same processes."""
    with distlab.Cluster(2, init_method=init_method) as cluster:
        for _ in range(3):
            assert cluster.run(sum_of_ranks) == [1.0, 1.0]
            cluster.heal()
        assert cluster.run(sum_of_ranks) == [1.0, 1.0]


def test_a_new_cluster_replaces_the_old_one_at_another_size():
    """Cluster(n) where one runs: the old ranks end, the old object says why it cannot be used."""
    first = distlab.Cluster(2)
    old = first.run(pid_on_rank)
    with distlab.Cluster(3) as second:
        assert wait_until_gone(lambda: [pid for pid in old if psutil.pid_exists(pid)]) == []
        with pytest.raises(distlab.ClusterError) as caught:
            first.run(pid_on_rank)
        assert str(caught.value) == (
            "This cluster was replaced by Cluster(3). Make one with distlab.Cluster(2), or call restart()."
        )
        assert second.run(sum_of_ranks) == [3.0] * 3
        assert repr(first) == "Cluster(2) was replaced by Cluster(3)"


def test_bad_arguments_leave_the_running_cluster_alone():
    """A Cluster(...) that is refused does not end the one that runs."""
    with distlab.Cluster(2) as cluster:
        pids = cluster.run(pid_on_rank)
        for bad in (lambda: distlab.Cluster(0), lambda: distlab.Cluster(2, engines="rocket")):
            with pytest.raises(distlab.ArgumentError):
                bad()
        assert cluster.run(pid_on_rank) == pids


def test_restart_stop_and_use_after_stop():
    """restart() gives new processes; stop() may be called twice; use after it says what to do."""
    cluster = distlab.Cluster(2, timeout=7, threads=2)
    before = cluster.run(pid_on_rank)
    cluster.push({"x": 1})
    cluster.restart()
    after = cluster.run(pid_on_rank)
    assert not set(before) & set(after)
    assert cluster.timeout == 7
    assert cluster.run(lambda rank, world_size: torch.get_num_threads()) == [2, 2]  # noqa: F821
    with pytest.raises(distlab.ArgumentError):
        cluster.pull("x")
    cluster.stop()
    cluster.stop()
    uses = [
        lambda: cluster.run(pid_on_rank),
        lambda: cluster.push({"x": 1}),
        lambda: cluster.pull("x"),
        lambda: cluster.client,
        cluster.heal,
        cluster.interrupt,
    ]
    for use in uses:
        with pytest.raises(distlab.ClusterError) as caught:
            use()
        assert str(caught.value) == "This cluster was stopped. Make one with distlab.Cluster(2), or call restart()."
    assert repr(cluster) == "Cluster(2) was stopped"
    assert "was stopped" in cluster._repr_html_()


def test_threads_are_set_before_torch_loads():
    """By default each rank gets max(1, cores // ranks) threads."""
    with distlab.Cluster(2) as cluster:
        expected = max(1, (os.cpu_count() or 1) // 2)
        assert cluster.threads == expected
        seen = cluster.run(lambda rank, world_size: (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]))  # noqa: F821
        assert seen == [(expected, str(expected))] * 2


def test_a_deadlock_ends_by_the_groups_timeout(monkeypatch):
    """A timeout that is over before a deadlock is proven: who waited is told after it, and variables are kept."""

    def deadlock(rank, world_size):
        if rank < 2:
            dist.recv(torch.zeros(1), src=1 - rank)  # noqa: F821

    monkeypatch.setattr("distlab.lookout.UNMOVED_SECONDS", 60)
    with distlab.Cluster(3, timeout=3) as cluster:
        cluster.push({"kept": 11})
        with pytest.raises(distlab.RankError) as caught:
            cluster.run(deadlock)
        line = deadlock.__code__.co_firstlineno + 2
        assert str(caught.value) == (
            "ranks 0-1 waited for each other, and nothing came for 3 s.\n"
            f"  ranks 0-1   line {line} in deadlock   dist.recv(torch.zeros(1), src=1 - rank)  # noqa: F821\n"
            "Rank 2 finished.\n"
            "The process group is rebuilt and variables are kept: change the cell and run it again."
        )
        assert cluster.pull("kept") == [11] * 3


def dies(rank, world_size):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()  # noqa: F821


def test_a_rank_that_dies_is_reported_and_replaced():
    """A killed rank: said with its signal, others freed; the next cell has a new rank 1 and the others' variables."""
    with distlab.Cluster(3, timeout=30) as cluster:
        before = cluster.run(pid_on_rank)
        cluster.push({"kept": 5})
        began = time.monotonic()
        with pytest.raises(distlab.RankDied) as caught:
            cluster.run(dies)
        assert time.monotonic() - began < 20  # the group's timeout is 30 s
        assert str(caught.value) == (
            "rank 1 was killed by SIGKILL (often the system, out of memory, or kill -9).\n"
            "The next cell starts a new one in its place, without its variables, and rebuilds the process group. "
            "Ranks 0 and 2 keep theirs."
        )
        assert caught.value.rank == 1
        assert "was killed by SIGKILL" in repr(cluster)
        assert cluster.run(sum_of_ranks) == [3.0] * 3
        after = cluster.run(pid_on_rank)
        assert (after[0], after[2]) == (before[0], before[2])
        assert after[1] != before[1]
        assert cluster.pull("kept", ranks=[0, 2]) == [5, 5]
        assert cluster.client.ids == [0, 1, 2]
        assert "killed" not in repr(cluster)


def test_a_rank_that_gloo_aborts_tells_why():
    """A send and a recv of different sizes abort the receiver; its last words are in the message."""
    with distlab.Cluster(2, timeout=10) as cluster:

        def mismatch(rank, world_size):
            if rank == 0:
                dist.send(torch.zeros(4), dst=1)  # noqa: F821
            else:
                dist.recv(torch.zeros(2), src=0)  # noqa: F821

        with pytest.raises(distlab.RankDied) as caught:
            cluster.run(mismatch)
        first = str(caught.value).splitlines()[0]
        assert first == "rank 1 was killed by SIGABRT (often gloo: a send and its recv had different sizes)."
        assert "terminate called" in caught.value.failures[0].traceback
        assert cluster.run(sum_of_ranks) == [1.0, 1.0]


def test_with_the_stock_launcher_a_dead_rank_needs_a_restart():
    """Stock engines cannot be replaced one by one: the cluster says so until restart()."""
    with distlab.Cluster(2, timeout=30, engines="local") as cluster:
        assert cluster.run(sum_of_ranks) == [1.0, 1.0]
        with pytest.raises(distlab.RankDied) as caught:
            cluster.run(dies)
        assert str(caught.value) == (
            "rank 1 was killed by SIGKILL (often the system, out of memory, or kill -9).\n"
            "The cluster is not whole: call cluster.restart() for new ranks. "
            "Rank 0 lives and keeps its variables until then."
        )
        with pytest.raises(distlab.ClusterError, match=r"^The cluster is not whole: rank 1 was killed by SIGKILL"):
            cluster.run(sum_of_ranks)
        cluster.restart()
        assert cluster.run(sum_of_ranks) == [1.0, 1.0]


def test_the_table_shows_rank_state_memory_and_process():
    """repr and HTML list every rank with its pid."""
    with distlab.Cluster(2) as cluster:
        pids = cluster.run(pid_on_rank)
        lines = repr(cluster).splitlines()
        assert lines[0] == "Cluster(2): backend gloo"
        for rank, pid in enumerate(pids):
            assert lines[rank + 1].startswith(f"  rank {rank}   idle")
            assert lines[rank + 1].endswith(f" MB  pid {pid}")
            assert f"pid {pid}" in cluster._repr_html_()


SCRIPT = """
    import sys
    import distlab
    cluster = distlab.Cluster(2)
    print("tag", cluster.ranks._processes.tag, cluster.ranks._processes.folder, flush=True)
    {then}
"""


def run_script(then: str) -> subprocess.Popen:
    script = textwrap.dedent(SCRIPT).format(then=then)
    return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_notebooks_process_does_not_import_torch_to_start_and_use_ranks():
    """It would take the time and the core that the ranks need for the same."""
    process = run_script("print(cluster.run(max), 'torch' in sys.modules, flush=True); cluster.stop()")
    output, _ = process.communicate(timeout=60)
    assert output.splitlines()[-1] == "[2, 2] False"


def test_a_killed_notebook_leaves_nothing_behind():
    """After SIGKILL of the process that made the cluster, every process and file of it is gone."""
    process = run_script("sys.stdin.read() or __import__('time').sleep(600)")
    _, tag, folder = process.stdout.readline().split()
    assert len(guard.find(tag)) >= 3
    process.kill()
    process.wait()
    assert wait_until_gone(lambda: guard.find(tag)) == []
    assert wait_until_gone(lambda: [folder] if os.path.exists(folder) else []) == []


def test_a_script_that_forgets_stop_ends_cleanly():
    """A plain script without stop() exits with status 0 and leaves nothing."""
    process = run_script("print(cluster.run(lambda rank, world_size: rank))")
    out, _ = process.communicate(timeout=60)
    _, tag, folder = out.splitlines()[0].split()
    assert (process.returncode, out.splitlines()[1]) == (0, "[0, 1]")
    assert wait_until_gone(lambda: guard.find(tag)) == []
    assert wait_until_gone(lambda: [folder] if os.path.exists(folder) else []) == []


FORK_ONLY = """
    import sys, ipyparallel
    cluster = ipyparallel.Cluster(engines="fork", n=2, log_level=40)
    client = cluster.start_and_connect_sync()
    print(cluster.engine_set.pid, *client[:].apply_sync(__import__("os").getpid), cluster.controller.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the fork launcher is for Linux")
def test_fork_launcher_ends_with_the_process_that_used_it():
    """For any user of ipyparallel: engines and their parent are gone within seconds after SIGKILL of that process."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FORK_ONLY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    *ours, controller = map(int, process.stdout.readline().split())
    assert len(ours) == 3
    process.kill()
    process.communicate()
    try:
        assert wait_until_gone(lambda: [pid for pid in ours if psutil.pid_exists(pid)]) == []
    finally:
        psutil.Process(controller).terminate()  # ipyparallel's own, and it stays as with any launcher


def test_ipyparallels_send_signal_works_without_a_nanny():
    """Client.send_signal reaches the forked engines: their control threads answer it."""
    with distlab.Cluster(2) as cluster:
        sleeping = cluster.client[:].apply_async(time.sleep, 30)
        assert wait_until_gone(lambda: [row for row in cluster.describe() if "computes" not in row["state"]]) == []
        cluster.client.send_signal("SIGINT", block=True)
        errors = sleeping.get(timeout=20, return_exceptions=True)
        assert [error.ename for error in errors] == ["KeyboardInterrupt"] * 2
        assert cluster.run(sum_of_ranks) == [1.0, 1.0]


def test_another_processs_cluster_is_not_touched():
    """Two processes have clusters side by side; ending one leaves the other at work."""
    other = run_script("sys.stdin.readline(); print(cluster.run(lambda rank, world_size: rank))")
    _, tag, _ = other.stdout.readline().split()
    theirs = {process.pid for process in guard.find(tag)}
    with distlab.Cluster(2) as mine:
        assert mine.run(sum_of_ranks) == [1.0, 1.0]
    assert {process.pid for process in guard.find(tag)} == theirs
    out, _ = other.communicate(timeout=60)
    assert out.splitlines() == ["[0, 1]"]


def test_the_store_listens_on_loopback_only():
    """Nothing of a cluster listens beyond 127.0.0.1."""
    with distlab.Cluster(2) as cluster:
        processes = [psutil.Process(), *guard.find(cluster.ranks._processes.tag)]
        listening = [
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert set(listening) == {"127.0.0.1"}


@pytest.mark.parametrize("place", [0, 13])
def test_a_port_that_another_program_takes_first(monkeypatch, place):
    """A controller that finds one of its ports taken ends; the cluster starts all the same, with other ports."""
    from distlab import processes

    original, attempts = processes._controller_args, []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)

        def first_with_a_taken_port():
            arguments = original()
            attempts.append(arguments)
            if len(attempts) == 1:
                ports = arguments[2].partition("=")[2].split(",")
                ports[place] = str(taken.getsockname()[1])
                arguments[2] = f"--IPController.ports={','.join(ports)}"
            return arguments

        monkeypatch.setattr(processes, "_controller_args", first_with_a_taken_port)
        with distlab.Cluster(2) as cluster:
            assert cluster.run(sum_of_ranks) == [1.0, 1.0]
        assert len(attempts) == 2
