"""Ranks that die while no cell is waited for: whatever is called next says so, and replaces them first."""

import os
import signal
import time

import pytest

import distlab

from .conftest import pid_on_rank, sum_of_ranks, wait_until_gone

KILLED = "killed by SIGKILL (often the system, out of memory, or kill -9)"
RANK_1 = f"Rank 1 was {KILLED} since the last cell: a new process takes its place, and its variables are lost.\n"


@pytest.fixture(scope="module")
def three(nothing_left):
    with distlab.Cluster(3, timeout=60) as cluster:
        yield cluster


def kill(cluster, ranks):
    """Kill the processes of some ranks, and wait until ipyparallel has heard of it."""
    pids = cluster.run(pid_on_rank)
    for rank in ranks:
        os.kill(pids[rank], signal.SIGKILL)
    assert wait_until_gone(lambda: set(ranks) & set(cluster.client.ids)) == set()
    return pids


def traced(cluster):
    with cluster.trace():
        cluster.run(pid_on_rank)


def all_reduce(tensor):
    dist.all_reduce(tensor)  # noqa: F821


CALLS = {
    "run": lambda cluster: cluster.run(pid_on_rank),
    "run checked": lambda cluster: cluster.run(pid_on_rank, check=True),
    "push": lambda cluster: cluster.push({"x": 1}),
    "pull": lambda cluster: cluster.pull("rank"),
    "heal": lambda cluster: cluster.heal(),
    "interrupt": lambda cluster: cluster.interrupt(),
    "trace": traced,
    "sweep": lambda cluster: distlab.sweep(cluster, all_reduce, [1024], repeat=1, warmup=1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_whatever_is_called_next_tells_a_death_and_replaces_the_rank(three, capsys, call):
    """One line says who died and how; the call works; the other ranks keep their processes and variables."""
    three.push({"kept": 5})
    before = kill(three, [1])
    call(three)
    assert capsys.readouterr().out == RANK_1
    after = three.run(pid_on_rank)
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] != before[1]
    assert three.pull("kept", ranks=[0, 2]) == [5, 5]
    assert three.run(sum_of_ranks) == [3.0] * 3


def test_the_table_tells_a_death_and_the_next_call_replaces_the_rank(three, capsys):
    """repr shows how a rank died, and prints nothing."""
    kill(three, [1])
    assert f"rank 1   was {KILLED}" in repr(three)
    assert capsys.readouterr().out == ""
    assert three.run(sum_of_ranks) == [3.0] * 3
    assert capsys.readouterr().out == RANK_1


def test_a_death_that_nobody_knows_of_yet_is_told_by_the_call_that_meets_it(three, capsys):
    """A rank killed a moment before the call: the line is printed, or the call raises RankDied; the next one works."""
    os.kill(three.run(pid_on_rank)[0], signal.SIGKILL)
    try:
        assert three.run(sum_of_ranks) == [3.0] * 3
        said = capsys.readouterr().out
    except distlab.RankDied as error:
        said = str(error)
    assert f"ank 0 was {KILLED}" in said
    assert three.run(sum_of_ranks) == [3.0] * 3


@pytest.mark.parametrize(("ranks", "who"), [([0, 2], "Ranks 0 and 2 were"), ([0, 1, 2], "Ranks 0-2 were")])
def test_several_deaths_are_told_together(three, capsys, ranks, who):
    """Two ranks, also rank 0, and all ranks are told in one line and replaced."""
    kill(three, ranks)
    assert three.run(sum_of_ranks) == [3.0] * 3
    places = "new processes take their places, and their variables are lost"
    assert capsys.readouterr().out == f"{who} {KILLED} since the last cell: {places}.\n"


@pytest.mark.parametrize("how", ["run", "pending"])
def test_all_ranks_come_back_when_the_process_that_forks_them_was_killed(three, capsys, how):
    """They end with it, which is told, and new processes take their places: in a cell, and after one."""
    pending = three.client[:].execute("import time; time.sleep(60)", block=False) if how == "pending" else None
    before = list(three.ranks.pids)
    launcher = three.ranks._processes.launcher
    os.kill(launcher.pid, signal.SIGKILL)
    assert wait_until_gone(lambda: [] if launcher.server_ended else [launcher]) == []
    assert three.run(sum_of_ranks) == [3.0] * 3
    ended = f"Ranks 0-2 ended with the process that forks the ranks, which was {KILLED} since the last cell: "
    assert capsys.readouterr().out == (f"{ended}new processes take their places, and their variables are lost.\n")
    assert not set(before) & set(three.run(pid_on_rank))
    if pending is not None:
        assert {error.ename for error in pending.get(timeout=10, return_exceptions=True)} == {"EngineError"}


def test_the_death_of_the_forking_process_in_a_cell_ends_the_cell(three):
    """The ranks die with it, and ipyparallel would notice after half a minute."""

    def kills_parent(rank, world_size):
        if rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(distlab.RankDied) as caught:
        three.run(kills_parent, timeout=20)
    assert str(caught.value) == (
        f"ranks 0-2 ended with the process that forks the ranks, which was {KILLED}.\n"
        "The next cell starts new ones in their places, without their variables, and rebuilds the process group."
    )
    assert three.run(sum_of_ranks) == [3.0] * 3


def test_a_pending_cell_of_a_dead_rank_does_not_cost_the_rank_that_took_its_place(three):
    """The result of a cell sent with --noblock tells the death, and the new rank stays."""
    from distlab.cell import Cell

    result = three.client[:].execute("dist.recv(torch.zeros(1), src=(rank + 1) % 3)", block=False)
    cell = Cell(three.ranks, result, [0, 1, 2])
    os.kill(three.ranks.pids[1], signal.SIGKILL)
    assert wait_until_gone(lambda: {1} & set(three.client.ids)) == set()
    pids = three.run(pid_on_rank)
    with pytest.raises(distlab.RankDied, match=f"^rank 1 was {KILLED[:17]}"):
        cell.replies()
    assert three.run(pid_on_rank) == pids


def test_with_the_stock_launcher_a_death_between_cells_needs_a_restart():
    """Its engines cannot be replaced one by one: the next call says so."""
    with distlab.Cluster(2, timeout=30, engines="local") as cluster:
        kill(cluster, [1])
        for call in (lambda: cluster.run(pid_on_rank), cluster.heal):
            with pytest.raises(distlab.ClusterError) as caught:
                call()
            advice = "Call cluster.restart(): it starts new ranks, without the variables."
            assert str(caught.value) == f"The cluster is not whole: rank 1 was {KILLED}. {advice}"
        cluster.restart()
        assert cluster.run(sum_of_ranks) == [1.0, 1.0]


def test_a_result_that_is_asked_for_after_the_end_of_its_cluster():
    """It is said that the cluster was stopped; nothing waits."""
    from distlab.cell import Cell

    cluster = distlab.Cluster(1)
    result = cluster.client[:].execute("import time; time.sleep(60)", block=False)
    cell = Cell(cluster.ranks, result, [0])
    cluster.stop()
    with pytest.raises(distlab.ClusterError) as caught:
        cell.finish()
    assert str(caught.value) == "The cluster was stopped before this cell had ended, and its results are lost."
