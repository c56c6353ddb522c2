"""Ranks that die, in a cell or between two: how is reported, and new ones replace them."""

import os
import signal
import threading
import time

import pytest
import torch.distributed as dist

import distlab
from tests.cluster.conftest import dies, kill, pid_on_rank, sum_of_ranks
from tests.processes import until
from tests.refused import raised

CLUSTER = {"n": 3, "timeout": 60}
KILLED = "killed by SIGKILL (often by the system when memory runs out, or by kill -9)"
NEW = "A new process starts without variables.\n"


def traced(cluster):
    with cluster.trace():
        cluster.run(pid_on_rank)


@pytest.mark.parametrize(
    "call", [traced, lambda cluster: cluster.push({"x": 1})], ids=["trace", "push"]
)
def test_whatever_is_called_next_reports_a_death_and_replaces_the_rank(usable, capsys, call):
    """One line says who died and how; the call works; the other ranks are as they were."""
    usable.push({"kept": 5})
    before = kill(usable, 1)
    row = repr(usable).splitlines()[2]
    assert row.startswith(f"rank 1: was {KILLED}  ")
    assert row.endswith(f"  -  pid {before[1]}")
    call(usable)
    assert capsys.readouterr().out == f"Since the last cell, rank 1 was {KILLED}. {NEW}"
    after = usable.run(pid_on_rank)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert usable.pull("kept", ranks=[0, 2]) == [5, 5]


def test_several_deaths_are_reported_together(usable, capsys):
    """Two ranks, also rank 0, are reported in one line and replaced."""
    kill(usable, 0, 2)
    assert usable.run(sum_of_ranks) == [3.0] * 3
    assert capsys.readouterr().out == f"Since the last cell, ranks 0 and 2 were {KILLED}. {NEW}"


def test_a_rank_that_dies_in_a_cell_is_reported_and_replaced(usable):
    """The signal is named, and the others are freed; the next cell has a new rank 1."""
    before = usable.run(pid_on_rank)
    usable.push({"kept": 6})
    error = raised(distlab.RankDied, usable.run, dies)
    line = dies.__code__.co_firstlineno + 3
    assert str(error) == (
        f"rank 1 was {KILLED}.\n"
        "What the other ranks did last:\n"
        f"  ranks 0 and 2  barrier()  conftest.py:{line} in dies  dist.barrier()\n"
        "The next cell starts a new one in its place, without its variables, and rebuilds the "
        "process group. Ranks 0 and 2 keep theirs."
    )
    assert error.failures[0].rank == 1
    after = usable.run(pid_on_rank)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert usable.pull("kept", ranks=[0, 2]) == [6, 6]
    assert usable.client.ids == [0, 1, 2]


def test_a_rank_that_dies_just_before_it_is_sent_its_cell(usable, monkeypatch):
    """ipyparallel has named it by then, and waits for ever for its reply."""
    usable.push({"kept": 7})
    pid, engine = usable.run(pid_on_rank)[1], usable.client._engines[1]
    send = usable.client.send_apply_request

    def send_late(*args, ident, **options):
        if ident.decode() == engine:
            os.kill(pid, signal.SIGKILL)
            until(lambda: 1 not in usable.client.ids)
        return send(*args, ident=ident, **options)

    monkeypatch.setattr(usable.client, "send_apply_request", send_late)
    error = raised(distlab.RankDied, usable.run, lambda rank, n: dist.barrier())
    assert str(error).startswith(f"rank 1 was {KILLED}.\n")
    assert usable.run(sum_of_ranks) == [3.0] * 3
    assert usable.pull("kept", ranks=[0, 2]) == [7, 7]


def test_a_rank_that_dies_while_the_group_waits_for_what_it_does(usable, capsys):
    """It was alive when the rebuild began: it is replaced all the same."""
    usable.client[1].execute("import os, time; time.sleep(1); os._exit(3)", block=False)
    usable.heal()
    died = f"Since the last cell, rank 1 ended with exit status 3. {NEW}"
    assert capsys.readouterr().out.startswith(died)
    assert usable.run(sum_of_ranks) == [3.0] * 3


def test_a_rank_that_dies_outside_of_the_cell_is_named(usable):
    """The ranks of the cell may need it, so they are brought back; nobody has interrupted them."""
    victim = usable.run(pid_on_rank)[1]
    killer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
    killer.start()
    error = raised(
        distlab.RankDied, usable.run, lambda rank, n: time.sleep(30), ranks=[0], timeout=20
    )
    assert str(error).startswith(f"rank 1 was {KILLED}.\n")


def test_a_death_is_reported_though_other_ranks_sleep(usable):
    """They are interrupted, and keep their variables; the error has what the rank wrote last."""

    def aborts(rank, world_size):
        if rank == 1:
            os.write(2, b"the last words\n")
            os.abort()
        time.sleep(60)

    usable.push({"kept": 7})
    began = time.monotonic()
    (failure,) = raised(distlab.RankDied, usable.run, aborts).failures
    assert failure.rank == 1
    assert "the last words" in failure.traceback
    assert time.monotonic() - began < 30
    assert usable.pull("kept", ranks=[0, 2]) == [7, 7]


def aborts_in_cpp(rank, world_size):
    if rank == 1:
        ended = (
            "terminate called after throwing an instance of 'std::bad_alloc'\n"
            "  what():  std::bad_alloc\n"
        )
        os.write(2, ended.encode())
        os.abort()
    dist.barrier()


def test_what_a_rank_writes_just_before_it_aborts_is_not_lost(monkeypatch):
    """A thread of the rank reads it, and ends with the rank; under pytest none does."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with distlab.Cluster(2) as cluster:
        for _ in range(5):
            error = raised(distlab.RankDied, cluster.run, aborts_in_cpp)
            assert str(error).startswith(
                "rank 1 was killed by SIGABRT (C++ raised std::bad_alloc: std::bad_alloc).\n"
            )
            assert "what():  std::bad_alloc" in error.failures[0].traceback


def forks_one_that_aborts(rank, world_size):
    child = os.fork()
    if child == 0:
        os.abort()
    os.waitpid(child, 0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGABRT)
    dist.barrier()


def test_a_fault_of_a_process_that_a_rank_has_forked_is_not_the_ranks(usable):
    """The lines are those of the rank's own end."""
    error = raised(distlab.RankDied, usable.run, forks_one_that_aborts)
    line = forks_one_that_aborts.__code__.co_firstlineno + 6
    assert [(failure.rank, failure.lines[0].number) for failure in error.failures] == [(1, line)]


def ends_after_its_child(rank, world_size):
    child = os.fork()
    if child == 0:
        os.abort()
    os.waitpid(child, 0)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_is_killed_has_no_lines_of_its_child(usable):
    error = raised(distlab.RankDied, usable.run, ends_after_its_child, ranks=[1])
    assert str(error).splitlines()[0] == f"rank 1 was {KILLED}."
    assert error.failures[0].lines == ()


def test_other_ranks_own_errors_are_told_beside_a_death(usable):
    def both(rank, world_size):
        if rank == 1:
            os._exit(3)
        if rank == 2:
            raise ValueError("no data")

    error = raised(distlab.RankDied, usable.run, both)
    assert str(error).startswith(
        "rank 1 ended with exit status 3.\nrank 2 raised ValueError: no data\n  rank 2   test_"
    )
    assert "did last" not in str(error)


def test_all_ranks_come_back_when_the_process_that_forks_them_was_killed(usable, capsys):
    """They end with it, and new processes replace them; a cell that runs ends, too."""
    pending = usable.client[:].execute("import time; time.sleep(60)", block=False)
    before = [one.pid for one in usable.ranks.joined]
    servers = usable.ranks._processes.servers
    os.kill(servers.to(0).process.pid, signal.SIGKILL)
    until(lambda: servers.why_lost(0))
    assert usable.run(sum_of_ranks) == [3.0] * 3
    ended = f"ranks 0-2 ended with the process that forks the ranks, which was {KILLED}"
    assert capsys.readouterr().out == f"Since the last cell, {ended}. {NEW}"
    assert not set(before) & set(usable.run(pid_on_rank))
    assert {error.ename for error in pending.get(timeout=10, return_exceptions=True)} == {
        "EngineError"
    }


def test_the_death_of_the_forking_process_in_a_cell_ends_the_cell(usable):
    """The ranks die with it, and ipyparallel would notice after half a minute."""

    def kills_parent(rank, world_size):
        if rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    assert str(raised(distlab.RankDied, usable.run, kills_parent, timeout=20)) == (
        f"ranks 0-2 ended with the process that forks the ranks, which was {KILLED}.\n"
        "The next cell starts new ones in their places, without their variables, "
        "and rebuilds the process group."
    )
