"""No false alarm, no leak, no way to wedge the notebook, whatever a cell does."""

import contextlib
import os
import signal
import threading
import time

import psutil
import pytest

import distlab
from tests.cluster.conftest import processes_of, sum_of_ranks, wait_until_gone
from tests.cluster.programs import correct_program

LONG = 1.5  # seconds: longer than a deadlock needs to be told


@pytest.fixture(scope="module")
def three(nothing_left):
    with distlab.Cluster(3, timeout=60) as cluster:
        yield cluster


# --- no false alarm ---


@pytest.mark.timeout(400)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_soak_of_correct_programs_raises_no_alarm(n):
    """70 random correct programs on each number of ranks, every other one checked, some with a rank that is slow."""
    with distlab.Cluster(n, timeout=60) as cluster:
        used = set()
        for seed in range(70):
            steps = cluster.run(correct_program, 1000 * n + seed, LONG if seed % 10 == 0 else 0, check=seed % 2 == 1)
            assert steps == [steps[0]] * n
            used |= set(steps[0])
        assert len(used) == 13


@pytest.mark.parametrize("slow", ["sleep", "loop", "matmul", "input pipeline"])
def test_a_slow_rank_is_no_deadlock(three, slow):
    """Ranks may wait for one that sleeps, loops, computes in C, or waits for a thread of its own."""

    def late(rank, world_size):
        import queue

        import torch
        import torch.distributed as dist

        end = time.monotonic() + 2
        if rank == 0 and slow == "sleep":
            time.sleep(2)
        elif rank == 0 and slow == "input pipeline":
            batches = queue.Queue()

            def load():
                time.sleep(2)
                batches.put(1)

            threading.Thread(target=load).start()
            batches.get()
        while rank == 0 and time.monotonic() < end:
            if slow == "matmul":
                torch.ones(700, 700) @ torch.ones(700, 700)
        dist.barrier()
        return True

    assert three.run(late) == [True] * 3


@pytest.mark.parametrize("how", ["thread", "timer"])
def test_a_thread_that_will_send_is_no_deadlock(three, how):
    """A message that a thread of the learner sends later ends the wait, also when its code has not begun yet."""

    def threaded(rank, world_size):
        import torch
        import torch.distributed as dist

        if rank == 0:

            def send(pause):
                time.sleep(pause)
                dist.send(torch.ones(1), dst=1)

            later = threading.Timer(2, send, [0]) if how == "timer" else threading.Thread(target=send, args=[2])
            later.start()
        elif rank == 1:
            dist.recv(torch.empty(1), src=0)
        return True

    assert three.run(threaded) == [True] * 3


def test_an_idle_pool_of_threads_hides_no_deadlock(three):
    """Threads that only wait for work do not count as somebody who may still send."""

    def pooled(rank, world_size):
        from concurrent.futures import ThreadPoolExecutor

        import torch
        import torch.distributed as dist

        with ThreadPoolExecutor(1) as pool:
            pool.submit(len, "x").result()
            dist.recv(torch.empty(1), src=(rank + 1) % world_size)

    with pytest.raises(distlab.DeadlockError):
        three.run(pooled)


def test_a_call_with_its_own_limit_ends_by_itself(three):
    """monitored_barrier with a timeout names the missing rank itself; no alarm takes that from the learner."""

    def monitored(rank, world_size):
        from datetime import timedelta

        import torch.distributed as dist

        if rank == 0:
            try:
                dist.monitored_barrier(timeout=timedelta(seconds=2))
            except RuntimeError as error:
                return str(error)

    assert "failed to pass monitoredBarrier in 2000 ms" in three.run(monitored)[0]
    three.heal()


# --- no leak ---


def measure(rank, world_size):
    """Descriptors, threads and megabytes of this rank."""
    import gc
    import threading

    import psutil

    gc.collect()
    process = psutil.Process()
    return process.num_fds(), threading.active_count(), process.memory_full_info().uss / 1e6


@pytest.mark.timeout(300)
def test_a_hundred_deadlocks_leave_nothing_behind(three, monkeypatch):
    """100 deadlocks, each told, freed and healed: no growth of descriptors and threads, under 1 MB a cycle."""
    monkeypatch.setattr("distlab.lookout.UNMOVED_SECONDS", 0.1)

    def deadlock(rank, world_size):
        import torch
        import torch.distributed as dist

        dist.recv(torch.empty(1), src=(rank + 1) % world_size)

    def cycle():
        with pytest.raises(distlab.DeadlockError):
            three.run(deadlock)

    for _ in range(5):
        cycle()
    here = psutil.Process()
    before, client = three.run(measure), (here.num_fds(), here.num_threads())
    for _ in range(100):
        cycle()
    after = three.run(measure)
    for (fds, threads, megabytes), (fds_after, threads_after, megabytes_after) in zip(before, after, strict=True):
        assert (fds_after, threads_after) <= (fds + 4, threads + 1)
        assert megabytes_after - megabytes < 100
    assert here.num_fds() <= client[0] + 4
    assert here.num_threads() <= client[1] + 2


# --- ranks that cannot be freed ---


def stubborn(rank, world_size):
    while rank == 1:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(1)


def test_a_rank_that_cannot_be_freed_is_replaced(three):
    """A rank that swallows every interrupt is ended; the message says which variables went with it."""
    three.push({"model": 1, "data": 2})
    with pytest.raises(distlab.RankTimeout) as caught:
        three.run(stubborn, timeout=2)
    words = "Rank 1 could not be freed: a new process took its place, and its variables are lost: data, model."
    assert words in str(caught.value)
    assert three.run(sum_of_ranks) == [3.0] * 3
    assert three.pull("model", ranks=[0, 2]) == [1, 1]


def test_a_stopped_rank_is_told_and_replaced(three):
    """A rank that does not answer is reported as that."""

    def stop(rank, world_size):
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.raises(distlab.RankTimeout) as caught:
        three.run(stop, timeout=2)
    assert "does not answer: it is stopped, or compiled code holds Python's lock" in str(caught.value)
    assert "Rank 2 could not be freed: a new process took its place" in str(caught.value)
    assert three.run(sum_of_ranks) == [3.0] * 3


def test_compiled_code_that_holds_pythons_lock_is_told(three):
    """A rank whose compiled code holds Python's lock does not answer; the others say where they wait."""

    def hold(rank, world_size):
        import ctypes

        import torch.distributed as dist

        if rank == 0:
            ctypes.PyDLL(None).sleep(60)
        dist.barrier()

    with pytest.raises(distlab.RankTimeout) as caught:
        three.run(hold, timeout=2)
    said = str(caught.value).splitlines()
    assert said[1].startswith("  rank 0     does not answer")
    assert said[2].startswith("  ranks 1-2  barrier()")
    assert three.run(sum_of_ranks) == [3.0] * 3


def test_a_second_interrupt_does_not_wait(three):
    """Interrupted twice, a rank that swallows interrupts is ended at once."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timers = [threading.Timer(wait, os.kill, (os.getpid(), signal.SIGINT)) for wait in (2, 3)]
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        three.run(stubborn)
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGINT, handler)
    assert "Rank 1 could not be freed: a new process took its place" in str(caught.value)
    assert three.run(sum_of_ranks) == [3.0] * 3


def test_the_cluster_tells_what_its_ranks_do(three):
    """While a cell runs in the background, the repr says where each rank is."""

    def wait():
        import torch.distributed as dist

        while os.environ["RANK"] == "1":
            pass
        dist.barrier()

    three.client[:].apply_async(wait)
    states, deadline = [""], time.monotonic() + 20
    expected = ["barrier()", "computes", "barrier()"]
    while [state.partition(",")[0] for state in states] != expected and time.monotonic() < deadline:
        states = [row["state"] for row in three.describe()]
    three.interrupt()
    line = wait.__code__.co_firstlineno
    assert states == [f"barrier(), line {line + 5}", f"computes, line {states[1][-3:]}", f"barrier(), line {line + 5}"]
    assert [row["state"] for row in three.describe()] == ["idle"] * 3


def test_interrupt_from_outside_frees_some_stuck_ranks(three):
    """cluster.interrupt() frees ranks that wait while another is idle, and variables stay."""

    def wait(rank, world_size):
        import torch.distributed as dist

        if rank != 1:
            dist.barrier()

    three.push({"kept": 5})
    sent = three.client[:].apply_async(lambda: wait(int(os.environ["RANK"]), 3))
    three.interrupt()
    assert sent.wait(10)
    assert three.pull("kept") == [5] * 3
    assert three.run(sum_of_ranks) == [3.0] * 3


# --- floods ---


def test_a_hundred_megabytes_of_output_break_nothing(three, capsys):
    """What a rank prints is shortened; what it writes past Python goes to a log."""

    def flood(rank, world_size):
        if rank == 0:
            for _ in range(100):
                print("x" * 1_000_000)
        for _ in range(20):
            os.write(2, b"e" * 1_000_000)
        return rank

    assert three.run(flood) == [0, 1, 2]
    shown = capsys.readouterr().out
    assert "characters more" in shown
    assert len(shown) < 300_000


# --- lifetimes ---


def test_a_crashed_controller_ends_the_ranks_and_nothing_else(three):
    """The cell fails at once, everything of that cluster ends within 5 s, and restart() brings it back."""
    code = "import distlab, sys; c = distlab.Cluster(2); print(c.run(lambda r, n: r), flush=True); sys.stdin.read()"
    import subprocess
    import sys

    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "[0, 1]\n"
        others = len(processes_of(str(other.pid)))
        tag = three.ranks._processes.tag
        threading.Timer(2, three.ranks._processes._ipp_cluster.controller.process.kill).start()
        with pytest.raises(distlab.ClusterError, match="controller process has ended"):
            three.run(lambda rank, world_size: time.sleep(60))
        assert wait_until_gone(lambda: processes_of(tag)) == []
        with pytest.raises(distlab.ClusterError, match="has lost its controller process"):
            three.run(sum_of_ranks)
        assert len(processes_of(str(other.pid))) == others
        three.restart()
        assert three.run(sum_of_ranks) == [3.0] * 3
    finally:
        other.communicate("")
