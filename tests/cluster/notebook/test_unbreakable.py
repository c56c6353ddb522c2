"""No leak, and no way to wedge the notebook, whatever a cell does."""

import contextlib
import ctypes
import gc
import os
import re
import signal
import threading
import time

import psutil
import pytest
import torch.distributed as dist

import distlab
from distlab.notebook import seconds
from tests.cluster.conftest import processes_of, spin, stuck, sum_of_ranks
from tests.processes import controller_of, until, wait_until_gone
from tests.refused import raised

CLUSTER = {"n": 3, "timeout": 60}
pytestmark = pytest.mark.usefixtures("quick_watch")


def measure(rank, world_size):
    """Descriptors, threads and megabytes of this rank."""
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), threading.active_count(), process.memory_full_info().uss / 1e6


def test_many_deadlocks_leave_nothing_behind(usable, monkeypatch):
    """After 30 deadlocks no descriptor or thread more, and under 1 MB a cycle."""
    monkeypatch.setattr("distlab.notebook.seconds.UNMOVED", 0.05)
    for _ in range(5):
        raised(distlab.DeadlockError, usable.run, stuck)
    here = psutil.Process()
    before, client = usable.run(measure), (here.num_fds(), here.num_threads())
    for _ in range(30):
        raised(distlab.DeadlockError, usable.run, stuck)
    after = usable.run(measure)
    for (fds, threads, megabytes), (fds_after, threads_after, megabytes_after) in zip(
        before, after, strict=True
    ):
        assert (fds_after, threads_after) <= (fds + 4, threads + 1)
        assert megabytes_after - megabytes < 30
    assert here.num_fds() <= client[0] + 4
    assert here.num_threads() <= client[1] + 2


# --- ranks that cannot be freed ---


def stubborn(rank, world_size):
    while rank == 1:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(1)


def holds_pythons_lock(rank, world_size):
    if rank == 1:
        ctypes.PyDLL(None).sleep(60)
    dist.barrier()


LOST = "Rank 1 could not be freed: a new process took its place, and its variables are lost"
SILENT = "  rank 1         does not answer: it is stopped, or compiled code holds Python's lock"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (stubborn, [f"{LOST}: ", "data,", "model"]),
        (holds_pythons_lock, ["  ranks 0 and 2  barrier()", SILENT, LOST]),
    ],
)
def test_a_rank_that_cannot_be_freed_is_reported_and_replaced(usable, program, words):
    """It swallows interrupts, or does not answer; the message names the lost variables."""
    usable.push({"model": 1, "data": 2})
    text = str(raised(distlab.RankTimeout, usable.run, program, timeout=1))
    assert [word for word in words if word not in text] == [], text
    assert usable.pull("model", ranks=[0, 2]) == [1, 1]


def dies_beside_a_stubborn_one(rank, world_size):
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    stubborn(rank, world_size)


def test_a_death_is_what_is_reported_when_another_rank_cannot_be_freed(usable):
    """The other is replaced, too, and the error says so."""
    usable.push({"model": 1})
    error = raised(distlab.RankDied, usable.run, dies_beside_a_stubborn_one)
    assert str(error).startswith("rank 2 was killed by SIGKILL")
    assert LOST in str(error)
    assert error.finished == (0,)
    assert usable.run(sum_of_ranks) == [3.0] * 3
    assert usable.pull("model", ranks=[0]) == [1]


class SlowToTell(Exception):
    def __str__(self):
        time.sleep(1.5 * seconds.GIVE_UP / 2)  # it is asked for twice
        return "slow"


def is_slow_to_tell(rank, world_size):
    if rank == 1:
        raise SlowToTell
    dist.barrier()


def test_a_rank_that_tells_of_an_exception_has_time_for_it(usable):
    """Making the words may take a while, as a DataLoader's end does."""
    usable.push({"model": 1})
    error = raised(distlab.RankTimeout, usable.run, is_slow_to_tell, timeout=0.5)
    assert "rank 1 raised SlowToTell: slow" in str(error)
    assert usable.pull("model") == [1] * 3


def interrupt_after(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_a_second_interrupt_does_not_wait(usable, python_handles_sigint):
    """Interrupted twice, a rank that swallows interrupts is ended at once."""
    interrupt_after(0.5)
    interrupt_after(1)
    error = raised(KeyboardInterrupt, usable.run, stubborn)
    assert "Rank 1 could not be freed: a new process took its place" in str(error)


def raises_when_interrupted(rank, world_size):
    try:
        spin(rank, world_size)
    except KeyboardInterrupt:
        raise ValueError("half of a file") from None


@pytest.mark.parametrize(
    ("timeout", "kind"), [(None, distlab.errors.Interrupted), (0.5, distlab.RankTimeout)]
)
def test_what_a_rank_raises_when_it_is_interrupted_is_shown(
    usable, python_handles_sigint, timeout, kind
):
    """By a person or by a timeout: its except or finally may fail."""
    if timeout is None:
        interrupt_after(0.5)
    error = raised(kind, usable.run, raises_when_interrupted, ranks=[0, 2], timeout=timeout)
    assert (
        "ranks 0 and 2 raised ValueError: half of a file\n  ranks 0 and 2   test_unbreakable.py:"
        in str(error)
    )


def test_the_cluster_shows_what_its_ranks_do(usable):
    """While a cell runs in the background; interrupt() ends it."""

    def wait():
        while os.environ["RANK"] == "1":
            pass
        dist.barrier()

    def states():
        return [row["state"] for row in usable.describe()]

    usable.client[:].apply_async(wait)
    barrier = f"barrier(), test_unbreakable.py:{wait.__code__.co_firstlineno + 3}"
    until(
        lambda: (
            states()[::2] == [barrier] * 2
            and states()[1].startswith("computing, test_unbreakable.py:")
        )
    )
    usable.interrupt()
    assert states() == ["idle"] * 3


def test_much_output_breaks_nothing(usable, capsys):
    """What a rank prints is cut in the middle, also many lines, and what it writes past Python."""

    def flood(rank, world_size):
        if rank == 0:
            for _ in range(20):
                print("x" * 1_000_000)
        if rank == 1:
            for i in range(50_000):
                print("line", i)
        for _ in range(5):
            os.write(2, b"e" * 1_000_000)
        return rank

    assert usable.run(flood) == [0, 1, 2]
    shown = capsys.readouterr().out
    assert shown.count(" more characters ...\n") >= 2
    assert re.search(r"rank 1: +line 0\n", shown)
    assert "line 49999\n" in shown
    assert len(shown) < 600_000


def test_a_crashed_controller_ends_the_ranks(usable):
    """The cell fails at once, everything of that cluster ends, and restart() brings it back."""
    tag = usable.ranks._processes.tag
    threading.Timer(0.5, controller_of(usable).kill).start()
    with pytest.raises(distlab.ClusterError, match="controller process has ended"):
        usable.run(lambda rank, world_size: time.sleep(60))
    assert wait_until_gone(lambda: processes_of(tag)) == []
    with pytest.raises(distlab.ClusterError, match="with it the ranks: call cluster"):
        usable.run(sum_of_ranks)
    usable.restart()
