"""`distlab.spawn`, and `pytest --distlab-spawn` for tests that call torch's: as other people's."""

import os

import pytest

from distlab.launch import reaper
from tests.processes import marked, wait_until_gone
from tests.testing.inner import ROOT, Inner

# what a spawned process finds by its module's name
WORK = """
import os
import sys
import time
import distlab
import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

CALLS = []

def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12390"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)

def report(rank, world_size, queue, shared, names):
    CALLS.append(rank)
    names[rank] = (os.environ.get("RANK"), os.environ.get("FROM_TEST"), os.getcwd(), len(CALLS))
    setup(rank, world_size)
    total = torch.ones(1)
    dist.all_reduce(total)
    shared[rank] = total.item()
    queue.put(rank)
    dist.destroy_process_group()

def write(rank):
    print("by Python")
    os.system("echo by a shell >&2")

def fail(rank, world_size):
    setup(rank, world_size)
    if rank == 1:
        raise ValueError("no data")
    dist.barrier()

def fail_beside_a_long_sleep(rank):
    if rank == 1:
        raise ValueError("no patience")
    time.sleep(600)

def leave(rank, how):
    if rank == 1:
        how()

def hang(rank, world_size, early):
    if rank == 1 and early:
        return
    setup(rank, world_size)
    if rank == 0:
        dist.barrier()

def sleep(rank):
    time.sleep(600)

def nest(rank):
    distlab.spawn(write, nprocs=1)
"""
PROJECT = """
import functools
import os
import signal
import distlab
import pytest
import torch
import torch.multiprocessing as mp
import work
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, spawn

def test_which_process():
    print("pid", os.getpid())
    assert spawn is mp.spawn is work.spawn

def test_it_is_as_a_new_process(monkeypatch, tmp_path):
    context = mp.get_context("spawn")
    monkeypatch.chdir(tmp_path)
    with context.Manager() as manager:
        for turn in ("first", "second"):
            monkeypatch.setenv("FROM_TEST", turn)
            queue = context.Queue()
            shared = torch.zeros(2).share_memory_()
            names = manager.dict()
            mp.spawn(work.report, args=(2, queue, shared, names), nprocs=2)
            assert shared.tolist() == [2.0, 2.0]
            assert sorted([queue.get(), queue.get()]) == [0, 1]
            assert dict(names) == dict.fromkeys((0, 1), (None, turn, str(tmp_path), 1))

def test_output(capfd):
    mp.spawn(work.write)
    assert capfd.readouterr() == ("by Python\\n", "by a shell\\n")

def test_raised():
    with pytest.raises(ProcessRaisedException, match="ValueError: no data") as found:
        spawn(work.fail, (2,), 2)
    assert isinstance(found.value, distlab.RankError)
    assert found.value.error_index == 1
    assert "in fail\\n    raise ValueError" in str(found.value)

def test_others_are_ended():
    with pytest.raises(ProcessRaisedException, match="no patience"):
        mp.spawn(work.fail_beside_a_long_sleep, nprocs=2)

@pytest.mark.parametrize(("how", "code", "name"), [
    (functools.partial(os._exit, 7), 7, None),
    (functools.partial(exit, 3), 3, None),
    (functools.partial(signal.raise_signal, signal.SIGKILL), -9, "SIGKILL"),
])
def test_ended(how, code, name):
    with pytest.raises(ProcessExitedException) as found:
        mp.spawn(work.leave, (how,), 2)
    error = found.value
    assert (error.error_index, error.exit_code, error.signal_name) == (1, code, name)

@pytest.mark.parametrize("how", [lambda: os._exit(0), exit])
def test_ended_well(how):
    mp.spawn(work.leave, (how,), 2)

@pytest.mark.parametrize("early", [False, True])
def test_deadlock(early):
    with pytest.raises(ProcessRaisedException) as found:
        mp.spawn(work.hang, (2, early), 2)
    assert isinstance(found.value, distlab.DeadlockError)
    assert "Rank 0 waits in" in str(found.value)
    assert "for rank 1, which has finished" in str(found.value)

def test_deadlock_is_shown():
    mp.spawn(work.hang, (2, False), 2)

def test_not_joined():
    context = mp.spawn(work.write, nprocs=2, join=False)
    assert len(set(context.pids())) == 2
    while not context.join(timeout=0.01):
        assert all(process.is_alive() for process in context.processes)
    assert [process.exitcode for process in context.processes] == [0, 0]
    with pytest.raises(distlab.DeadlockError):
        mp.spawn(work.hang, (2, True), 2, join=False).join()

def test_by_value_and_nested():
    mp.spawn(lambda rank, add: work.nest(rank + add), (1,))

def test_a_cluster_stays():
    with distlab.Cluster(1) as cluster:
        cluster.push({"x": 5})
        mp.spawn(work.write)
        assert distlab.Cluster.current is cluster
        assert cluster.pull("x") == [5]

def test_fork_is_torchs():
    mp.start_processes(work.write, nprocs=1, start_method="fork")

@pytest.mark.timeout(2, method="signal")
def test_timeout():
    mp.spawn(work.sleep)

def test_after_a_timeout():
    mp.spawn(work.write)

def test_refused():
    with pytest.raises(ValueError, match="nprocs must be"):
        distlab.spawn(work.write, nprocs=0)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spawned")
    (folder / "work.py").write_text(WORK)
    (folder / "test_project.py").write_text(PROJECT)
    return Inner(folder, "--distlab-spawn", "test_project.py")


FAILS = ("test_deadlock_is_shown", "test_timeout")


def test_calls_of_torchs_spawn_work_as_they_are(project):
    """And end as torch's do, but for a deadlock, which ends at all."""
    failed = {name: one for name, one in project.outcomes.items() if one.how != "passed"}
    assert sorted(failed) == sorted(FAILS), project.output
    assert len(project.outcomes) > 15
    assert "Failed: Timeout" in failed["test_timeout"].text


def test_a_deadlock_is_the_report_of_a_cluster(project):
    text = project.outcomes["test_deadlock_is_shown"].text
    assert "Rank 0 waits in barrier for rank 1, which has finished without calling it." in text
    assert "barrier()  work.py:" in text
    assert "in hang" in text
    assert "context.wait()" not in text  # none of our own lines


def test_nothing_is_left(project):
    pid = project.outcomes["test_which_process"].text.partition("pid ")[2].split()[0]
    assert wait_until_gone(lambda: marked(reaper.TAG, f"{pid}-"), 10) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")
def test_tests_of_a_course(tmp_path):
    """Eight tests, each of which spawns two processes that train; with xdist, too."""
    suite = ROOT / "tests" / "testing" / "course_by_spawn.py"
    for options in ([], ["-n", "2"]):
        ended = Inner(tmp_path, "--distlab-spawn", *options, str(suite))
        assert [one.how for one in ended.outcomes.values()] == ["passed"] * 8, ended.output
