"""Remote procedure calls: started again, served between cells, printed, interrupted."""

import contextlib
import os
import signal
import sys
import threading
import time

import pytest
import torch
from torch.distributed import rpc

import distlab
from distlab.checking import all_exercises
from distlab.errors import Interrupted, RankError
from tests.processes import until
from tests.refused import raised


def here():
    """The names of a rank's cells."""
    return vars(sys.modules["__main__"])


ENDED = (
    "RPC has ended, and its RRefs and futures with it: call rpc.init_rpc(...) again on every rank."
)


def start(rank, world_size):
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)


def add_up(rank, world_size):
    """A call to the next rank, a value that it keeps, and one passed on."""
    to = f"worker{(rank + 1) % world_size}"
    kept = rpc.remote(to, torch.add, (torch.ones(2), rank))
    passed = rpc.rpc_sync(
        f"worker{(rank + 2) % world_size}", lambda held: held.to_here().sum(), (kept,)
    )
    return float(passed), kept.owner().id


@pytest.fixture
def calling(cluster):
    """The module's cluster with RPC on all ranks, which it leaves."""
    cluster.run(start)
    yield cluster
    cluster.run(lambda rank, world_size: rpc.shutdown())


def right(cluster):
    n = cluster.n
    return cluster.run(add_up) == [(2.0 + 2 * rank, (rank + 1) % n) for rank in range(n)]


def ended(cluster):
    """Whether a call says what to do, on every rank, and RPC works when that was done."""
    error = raised(RankError, cluster.run, add_up)
    told = "Call rpc.init_rpc(...) on every rank" in str(error) and len(error.failures) == cluster.n
    cluster.run(start)
    return told and right(cluster)


def test_it_is_there_until_it_is_broken_and_starts_again(capsys):
    """A freed cell, an interrupt, a death, heal and restart end RPC, and a new one works."""
    with distlab.Cluster(3, timeout=20) as cluster:
        cluster.run(start)
        raised(distlab.RankError, cluster.run, lambda rank, n: rpc.rpc_sync("worker1", int, ("x",)))
        assert right(cluster)
        cluster.run(lambda rank, n: rpc.shutdown())
        cluster.run(start)
        for error, function, argument in (
            (distlab.RankTimeout, time.sleep, 60),
            (distlab.RankDied, os._exit, 3),
        ):
            call = lambda rank, n, *what: rank == 0 and rpc.rpc_sync("worker1", *what)  # noqa: E731
            assert str(raised(error, cluster.run, call, function, (argument,), timeout=2)).endswith(
                ENDED
            )
            assert ended(cluster)
        # torch's would wait forever: rank 1 has never ended one before
        cluster.run(lambda rank, n: rpc.shutdown())
        cluster.run(start)
        for end in (cluster.heal, cluster.interrupt):
            end()
            assert capsys.readouterr().out == f"{ENDED}\n"
            assert ended(cluster)
        cluster.restart()
        assert ended(cluster)


def test_it_starts_however_the_group_was_built():
    """By the cluster's store; not on a simulated network, where it would cost no time."""
    with distlab.Cluster(3, init_method="file") as cluster:
        cluster.run(start)
        assert right(cluster)
        cluster.run(lambda rank, n: rpc.shutdown())
        with cluster.network(distlab.Network("5 us", "1 GB/s")):
            assert "There are no remote calls on a simulated network" in str(
                raised(RankError, cluster.run, start)
            )


@pytest.mark.usefixtures("progress_file")
def test_a_check_makes_remote_calls():
    """With agents of its own, which end with it, and with those that run, which go on."""
    answer = all_exercises()["add_up_on"].function
    with distlab.Cluster(4) as cluster:
        assert distlab.check("add_up_on", answer).passed
        cluster.run(start)
        assert distlab.check("add_up_on", answer).passed
        assert right(cluster)


def test_a_rank_that_serves_between_cells_is_shown(calling, capsys, tmp_path):
    """While the function runs, and what it printed with the next cell."""
    enough = tmp_path / "enough"

    def begin(rank, world_size):
        def long():
            while not enough.exists():
                time.sleep(0.01)
            print("done")

        if rank == 0:
            here()["pending"] = rpc.rpc_async("worker2", long)

    def state(rank):
        return calling.describe()[rank]["state"]

    calling.run(begin)
    until(
        lambda: state(2).startswith("serving rank 0, long(...): computing, test_remote_calls.py:")
    )
    assert state(3) == "serving remote calls"
    capsys.readouterr()
    enough.touch()
    calling.run(lambda rank, world_size: pending.wait() if rank == 0 else None)  # noqa: F821
    assert capsys.readouterr().out == "rank 2: done\n"


def test_a_number_that_two_workers_have_is_refused(cluster):
    """torch would wait for the missing one forever."""

    def start_as_first(rank, world_size):
        rpc.init_rpc(f"worker{rank}", rank=0, world_size=world_size)

    words = "rank must be different on every worker, got 0. It is that of ranks 0-3. Use rank=rank"
    assert words in str(raised(RankError, cluster.run, start_as_first))


def test_a_name_that_torch_refuses_is_refused_at_once(cluster):
    """The other workers have not met the refused one: they are freed, and RPC starts again."""

    def start_with_a_space(rank, world_size):
        rpc.init_rpc("worker 0" if rank == 0 else f"worker{rank}")

    said = str(raised(RankError, cluster.run, start_with_a_space, timeout=20))
    assert "rank 0 raised RuntimeError: Worker name must match" in said
    cluster.run(start)
    assert right(cluster)
    cluster.run(lambda rank, world_size: rpc.shutdown())


def test_interrupting_frees_who_waits_and_who_serves(calling, python_handles_sigint):
    """Ctrl-C while a rank waits for a function that computes for ever frees both."""

    def forever():
        while True:
            time.sleep(0.01)

    def call(rank, world_size):
        here()["own"] = rank
        if rank == 0:
            rpc.rpc_sync("worker1", forever)

    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    said = str(raised(Interrupted, calling.run, call))
    assert "waiting for rank 1: forever(...)" in said
    assert "serving rank 0, forever(...): computing" in said
    assert calling.run(lambda rank, world_size: own) == [0, 1, 2, 3]  # noqa: F821
    assert ended(calling)


def test_a_shutdown_waits_for_a_function_whose_caller_has_given_up(calling):
    """The wait is Python's and can be ended, and RPC starts again."""

    def stop(rank, world_size):
        if rank == 0:
            with contextlib.suppress(RuntimeError):
                rpc.rpc_sync("worker1", time.sleep, (60,), timeout=0.1)
        rpc.shutdown()

    assert "shutdown" in str(raised(distlab.RankTimeout, calling.run, stop, timeout=2))
    assert ended(calling)


def test_a_trace_has_calls_and_what_they_ran(calling):
    """Two messages for each call of a function in Python, the bar of the function on the callee."""

    def work(rank, world_size):
        if rank == 0:
            rpc.rpc_sync("worker3", lambda: time.sleep(0.02))
            rpc.rpc_async("worker1", time.sleep, (0.01,)).wait()

    with calling.trace() as trace:
        calling.run(work)
    served = {event.rank: event.seconds for event in trace.events if event.kind == "serve"}
    assert served[3] > 0.02
    assert served[1] > 0.01
    assert sorted((message.src, message.dst) for message in trace.messages) == [
        (0, 1),
        (0, 3),
        (1, 0),
        (3, 0),
    ]
    waited = [event for event in trace.events if event.kind == "remote"]
    assert all(event.seconds >= served[event.peer] for event in waited)


def test_a_traced_call_that_cannot_be_sent_is_not_taken_for_the_next_one(calling):
    """The next call makes an RRef: a trace knows only when that was sent."""

    def work(rank, world_size):
        if rank == 0:
            with contextlib.suppress(TypeError):
                rpc.rpc_sync("worker1", print, (threading.Lock(),))
            rpc.remote("worker3", time.sleep, (0.01,)).to_here()

    with calling.trace() as trace:
        calling.run(work)
    assert [(message.src, message.dst) for message in trace.messages] == [(0, 3)]
