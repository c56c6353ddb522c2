"""Ranks that mpiexec starts, and the backend over mpi4py: the same programs with the same results as on gloo."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

import distlab
from distlab import guard, mpiexec

from .backend_programs import PROGRAMS
from .conftest import pid_on_rank, processes_of, sum_of_ranks, wait_until_gone
from .programs import correct_program
from .test_px import Notebook


@pytest.fixture(scope="module", params=[4, 3])
def both(request, nothing_left):
    """What every program gives on gloo, and a cluster on which the backend is mpi4py; one cluster runs at a time."""
    with distlab.Cluster(request.param, timeout=60) as gloo:
        expected = {name: gloo.run(program) for name, program in PROGRAMS.items()}
    with distlab.Cluster(request.param, engines="mpi", backend="mpi4py", timeout=60) as cluster:
        yield expected, cluster


@pytest.fixture
def cluster(both):
    """The cluster over MPI, which must still add up its ranks after the test."""
    yield both[1]
    assert both[1].run(sum_of_ranks) == [sum(range(both[1].n)) * 1.0] * both[1].n


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_on_mpi_what_it_gives_on_gloo(both, cluster, name):
    """Every collective, dtype and reduce operation, messages, groups, async Work, layouts, and training with DDP."""
    assert cluster.run(PROGRAMS[name]) == both[0][name]


def test_the_group_is_the_one_over_mpi(cluster):
    """torch names the backend, and rank r is MPI's rank r."""

    def who(rank, world_size):
        import torch.distributed as dist
        from mpi4py import MPI

        return dist.get_backend(), MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, repr(dist.group.WORLD)

    n = cluster.n
    assert cluster.run(who) == [("mpi4py", r, n, f"<mpi4py group, rank {r} of {n}>") for r in range(n)]


def test_slices_with_gaps_are_added_up_whole(cluster):
    """gloo adds up the wrong elements of such a tensor without a word; here the result is that of one process."""

    def gaps(rank, world_size):
        import torch
        import torch.distributed as dist

        whole = torch.arange(16.0).reshape(4, 4) + rank
        view = whole[:, ::2]
        dist.all_reduce(view)
        return view.tolist(), whole[:, 1::2].tolist()

    n = cluster.n
    added = [[n * x + sum(range(n)) for x in row] for row in ([0, 2], [4, 6], [8, 10], [12, 14])]
    for rank, (view, untouched) in enumerate(cluster.run(gaps)):
        assert view == added
        assert untouched == [[x + rank for x in row] for row in ([1, 3], [5, 7], [9, 11], [13, 15])]


def refused(rank, world_size):
    """What the backend says to what it cannot do, on every rank alike, so that nobody waits."""
    import torch
    import torch.distributed as dist

    ones, said = torch.ones(2, 2), []
    calls = (
        lambda: dist.all_reduce(ones, dist.ReduceOp.BAND),
        lambda: dist.all_reduce(ones.long(), dist.ReduceOp.AVG),
        lambda: dist.all_reduce(ones.to(torch.float8_e4m3fn)),
        lambda: dist.reduce(ones, 0, torch.distributed._make_nccl_premul_sum(2.0)),
        lambda: dist.all_gather([ones] * 2 + [ones[0]] * (world_size - 2), ones),
        lambda: dist.all_gather_into_tensor(torch.ones(3), ones),
        lambda: dist.send(torch.ones(2, 3).t(), (rank + 1) % world_size),
        lambda: dist.all_to_all_single(ones, ones, [1] * world_size, [2] * world_size),
        lambda: dist.all_to_all_single(torch.ones(()), torch.ones(())),
        lambda: dist.broadcast(torch.ones(2).to_sparse(), 0),
        lambda: dist.all_reduce(torch.ones(2, device="meta")),
        lambda: dist.send(ones, (rank + 1) % world_size, tag=-1),
        lambda: dist.all_gather([], ones),
        lambda: dist.all_to_all([], [ones] * world_size),
        lambda: dist.all_reduce_coalesced([]),
    )
    for call in calls:
        try:
            call()
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error))
    return said


def test_what_is_not_supported_is_refused_in_words(cluster):
    """Before anything is sent, with what to do instead."""
    n = cluster.n
    said = cluster.run(refused)
    assert said == [said[0]] * n
    assert [words.split(". ")[0] for words in said[0][:5]] == [
        "all_reduce cannot use ReduceOp.BAND with non-integral dtype torch.float32",
        "all_reduce cannot use ReduceOp.AVG with torch.int64",
        "all_reduce cannot compute with torch.float8_e4m3fn on mpi4py",
        "reduce cannot use ReduceOp.PREMUL_SUM with mpi4py",
        "all_gather needs tensors of one shape, got at index 2 [2], expected [2, 2].",
    ]
    assert said[0][5] == (f"all_gather_single needs a tensor of {n} times 4 elements, got 3.")
    assert said[0][6] == "send needs a contiguous tensor, got strides (1, 3). Call tensor.contiguous()."
    assert said[0][7] == f"all_to_all_single needs {n} splits that add up to 2 rows, got {[2] * n}."
    assert said[0][8].startswith("all_to_all_single needs tensors with a first dimension to share, got a scalar.")
    assert said[0][9].startswith("broadcast on mpi4py needs dense CPU tensors, got a torch.sparse_coo tensor.")
    assert said[0][10].startswith("all_reduce on mpi4py needs dense CPU tensors, got a meta tensor.")
    assert said[0][11].startswith("tag must be from 0 to ")
    assert said[0][12:] == [
        f"all_gather needs a list of {n} tensors, one a rank of the group, got 0.",
        f"all_to_all needs a list of {n} tensors, one a rank of the group, got 0.",
        "all_reduce_coalesced needs a tensor, got an empty list.",
    ]


@pytest.mark.parametrize(
    ("sent", "received", "words"),
    [
        (4, 2, "recv failed in MPI: the message is longer than the tensor that receives it"),
        (2, 4, "recv got 8 bytes for a tensor of 16"),
    ],
)
def test_a_message_of_another_size_is_an_error(cluster, sent, received, words):
    """gloo ends the process for it; here the receiver raises, and the cluster goes on."""

    def mismatch(rank, world_size):
        import torch
        import torch.distributed as dist

        if rank == 0:
            dist.send(torch.ones(sent), 1)
        elif rank == 1:
            dist.recv(torch.ones(received), 0)

    with pytest.raises(distlab.RankError) as caught:
        cluster.run(mismatch)
    assert caught.value.rank == 1
    assert f"rank 1 raised RuntimeError: {words}; send and recv tensors of one size." in str(caught.value)


# --- the cluster's promises ---


def test_a_deadlock_over_mpi_is_named_and_freed(cluster):
    """Ranks that wait in MPI are told apart, brought back, and keep their variables."""

    def circle(rank, world_size):
        import torch
        import torch.distributed as dist

        dist.recv(torch.zeros(1), src=(rank + 1) % world_size)

    def alone(rank, world_size):
        import torch
        import torch.distributed as dist

        if rank:
            dist.all_reduce(torch.zeros(1))

    cluster.push({"kept": 7})
    n = cluster.n
    with pytest.raises(distlab.DeadlockError, match=rf"^{n} of {n} ranks wait for each other; nobody will send\."):
        cluster.run(circle)
    with pytest.raises(distlab.DeadlockError, match=rf"^Ranks 1-{n - 1} wait in all_reduce for rank 0, which has"):
        cluster.run(alone)
    assert cluster.pull("kept") == [7] * n


def too_late(rank, world_size):
    import datetime

    import torch
    import torch.distributed as dist

    said, group = "", dist.new_group([0, 1], timeout=datetime.timedelta(seconds=3))
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            said = str(error)
    dist.barrier()
    if rank == 1:
        dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    return said


def test_a_group_whose_time_ends_first_is_no_deadlock(cluster):
    """Rank 0 waits for nobody, and its own error ends that: the others may wait for it."""
    assert cluster.run(too_late)[0] == "Timed out waiting 3000ms for all_reduce operation to complete"


def test_a_rank_that_raises_frees_those_that_wait_in_mpi(cluster):
    """The culprit is named first, the others in a line."""

    def fails(rank, world_size):
        import torch
        import torch.distributed as dist

        if rank == 1:
            raise ValueError("mine")
        dist.all_reduce(torch.zeros(1))

    with pytest.raises(distlab.RankError) as caught:
        cluster.run(fails)
    assert str(caught.value).startswith("rank 1 raised ValueError: mine\n")
    assert "waited in communication and could not go on" in str(caught.value)


def test_backward_is_freed_when_a_rank_raises(cluster):
    """DDP waits in C++, for Futures; the ranks live on, with their variables."""

    def fails(rank, world_size):
        from torch import nn, ones

        net = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
        if rank == 1:
            raise ValueError("mine")
        net(ones(1, 2)).sum().backward()

    pids = cluster.run(pid_on_rank)
    with pytest.raises(distlab.RankError, match=r"^rank 1 raised ValueError: mine\n"):
        cluster.run(fails)
    assert cluster.run(pid_on_rank) == pids


def test_what_a_freed_rank_waited_for_is_kept_from_reuse(cluster):
    """A message that comes later writes into memory that nobody else has got meanwhile."""

    def waits(rank, world_size):
        import torch
        import torch.distributed as dist

        if rank == 1:
            raise ValueError("mine")
        dist.recv(torch.zeros(1000), src=1)

    def kept(rank, world_size):
        from distlab.mpi_progress import progress

        return [(work.what, work.result()[0].numel()) for work in progress()._abandoned[-1:]]

    with pytest.raises(distlab.RankError, match=r"^rank 1 raised ValueError: mine\n"):
        cluster.run(waits)
    assert [one for rank, one in enumerate(cluster.run(kept)) if rank != 1] == [[("recv", 1000)]] * (cluster.n - 1)


@pytest.mark.timeout(240)
def test_correct_programs_over_mpi_raise_no_alarm(cluster):
    """30 random correct programs, some with a rank that is slow."""
    for seed in range(30):
        steps = cluster.run(correct_program, 5000 + seed, 1.5 if seed % 10 == 0 else 0)
        assert steps == [steps[0]] * cluster.n


def test_the_group_can_be_built_again_many_times(cluster):
    """More often than MPI has room for communicators, some 2000: each is given back."""
    cluster.heal()
    assert cluster.run(many_groups, 2100 if cluster.n == 3 else 10) == [cluster.n * 1.0] * cluster.n


def many_groups(rank, world_size, count):
    import torch
    import torch.distributed as dist

    for _ in range(count):
        group = dist.new_group()
        dist.destroy_process_group(group)
        del group
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


# --- mpiexec under a cluster ---


def dies(rank, world_size):
    import torch.distributed as dist

    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_a_rank_that_dies_takes_the_others_with_it_and_restart_brings_all_back():
    """mpiexec ends every rank when one ends: said at once, also for a death between cells; gloo runs on MPI's ranks."""
    with distlab.Cluster(3, engines="mpi", timeout=30) as cluster:
        assert cluster.run(sum_of_ranks) == [3.0] * 3
        with pytest.raises(distlab.RankDied) as caught:
            cluster.run(dies)
        assert str(caught.value) == (
            "rank 1 died.\n"
            "MPI ends a whole program when one of its processes ends: mpiexec has ended ranks 0 and 2 too.\n"
            "All variables are lost: call cluster.restart() for new ranks."
        )
        assert mpiexec.WITH_ANOTHER in repr(cluster)
        with pytest.raises(distlab.ClusterError, match=r"^The cluster is not whole: rank 1 died\. Call cluster\.rest"):
            cluster.run(sum_of_ranks)
        cluster.restart()
        pids = cluster.run(pid_on_rank)
        os.kill(pids[2], signal.SIGKILL)
        assert wait_until_gone(lambda: cluster.client.ids) == []
        with pytest.raises(distlab.ClusterError, match=r"^The cluster is not whole: rank \d died\."):
            cluster.run(sum_of_ranks)
        cluster.restart()
        assert cluster.run(sum_of_ranks) == [3.0] * 3


def test_mpiexec_ends_with_a_killed_notebook():
    """After SIGKILL of the process that made the cluster nothing of mpiexec is left."""
    script = """
        import sys, distlab
        cluster = distlab.Cluster(2, engines="mpi")
        print(cluster.ranks._processes.tag, flush=True)
        sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    tag = process.stdout.readline().strip()
    names = [found.name() for found in guard.find(tag)]
    assert any(name.startswith("mpiexec") for name in names), names
    process.kill()
    process.wait()
    assert wait_until_gone(lambda: processes_of(tag)) == []


# --- the backend without a cluster ---

SCRIPT = """
    import os
    from datetime import timedelta
    import torch
    import torch._dynamo  # before the group, or torch 2.13 leaves threads of it alive
    import torch.distributed as dist
    from distlab import mpi_backend
    mpi_backend.register()
    dist.init_process_group("mpi4py", timeout=timedelta(seconds=60))
    rank, n = dist.get_rank(), dist.get_world_size()
"""


def run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def mpi_script(n: int, body: str) -> subprocess.CompletedProcess:
    """Run the lines of SCRIPT and then `body` on `n` processes that mpiexec starts."""
    source = textwrap.dedent(SCRIPT) + textwrap.dedent(body)
    return run([mpiexec.find(), "-n", str(n), *mpiexec.arguments(), sys.executable, "-c", source])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_script_needs_only_mpiexec(n):
    """Neither addresses nor numbers are given; the script ends by itself with status 0."""
    ended = mpi_script(
        n,
        """
        from torch.nn.parallel import DistributedDataParallel
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        net = DistributedDataParallel(torch.nn.Linear(2, 2))
        net(torch.ones(1, 2)).sum().backward()
        os.write(1, f"sum {total.item()}\\n".encode())  # at once, or the lines of two ranks mix
        dist.destroy_process_group()
        """,
    )
    assert (ended.returncode, ended.stdout.split("\n")[:-1]) == (0, [f"sum {n * (n + 1) / 2}"] * n), ended.stderr


def test_a_wait_that_is_too_long_is_told_and_breaks_the_group():
    """The words are gloo's; the group begins nothing more, and a new one works. At exit MPI cannot end cleanly."""
    ended = mpi_script(
        2,
        """
        group = dist.new_group(timeout=timedelta(seconds=1))
        if rank == 0:
            try:
                dist.all_reduce(torch.ones(1), group=group)
            except RuntimeError as error:
                print("first:", error)
            try:
                dist.barrier(group)
            except RuntimeError as error:
                print("then:", error, flush=True)
        dist.barrier()
        dist.destroy_process_group(group)
        total = torch.ones(1)
        dist.all_reduce(total, group=dist.new_group())
        os.write(1, f"again: {total.item()}\\n".encode())
        dist.barrier()
        """,
    )
    lines = sorted(ended.stdout.splitlines())
    assert lines == [
        "again: 2.0",
        "again: 2.0",
        "first: Timed out waiting 1000ms for all_reduce operation to complete",
        "then: barrier cannot begin: the group is broken (Timed out waiting 1000ms for all_reduce operation to "
        "complete). Destroy it and make it again.",
    ], ended.stderr
    assert "MPI cannot end while all_reduce is pending: all its processes are ended." in ended.stderr


def test_a_backward_that_is_too_long_raises():
    """DDP waits in C++ for a Future, which gets the error."""
    ended = mpi_script(
        2,
        """
        from torch.nn.parallel import DistributedDataParallel
        net = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=dist.new_group(timeout=timedelta(seconds=3)))
        if rank == 0:
            try:
                net(torch.ones(1, 2)).sum().backward()
            except RuntimeError as error:
                os.write(1, f"{error}\\n".encode())
        dist.barrier()
        """,
    )
    assert "Timed out waiting 3000ms for all_reduce operation to complete" in ended.stdout, ended.stderr


def test_what_comes_after_its_time_is_no_failure():
    """A recv that was given up and came nevertheless does not keep MPI from ending."""
    ended = mpi_script(
        2,
        """
        group = dist.new_group(timeout=timedelta(seconds=1))
        if rank == 0:
            try:
                dist.recv(torch.ones(1), 1, group=group)
            except RuntimeError as error:
                print(error, flush=True)
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(1), 0, group=group)
        dist.barrier()
        """,
    )
    assert (ended.returncode, ended.stdout) == (0, "Timed out waiting 1000ms for recv operation to complete\n")


def test_a_message_that_nobody_waited_for_arrives():
    """Its memory is left alone until MPI has ended, which is later than Python."""
    ended = mpi_script(
        2,
        """
        if rank == 0:
            dist.isend(torch.full((1_000_000,), 7.0), 1)
        else:
            import time
            time.sleep(1)  # rank 0 is at its end meanwhile
            box = torch.zeros(1_000_000)
            dist.recv(box, 0)
            print(box.min().item(), box.max().item(), flush=True)
        """,
    )
    assert (ended.returncode, ended.stdout) == (0, "7.0 7.0\n"), ended.stderr


def test_an_address_that_is_given_is_kept(monkeypatch):
    """What mpiexec's user has set stays, and the rest is filled in."""
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    ended = mpi_script(2, """os.write(1, f"{os.environ['MASTER_ADDR']} {os.environ['WORLD_SIZE']}\\n".encode())""")
    assert (ended.returncode, ended.stdout) == (0, "localhost 2\n" * 2), ended.stderr


def test_what_then_is_given_may_wait_for_another_future():
    """As torch's own PowerSGD hook does."""
    ended = mpi_script(
        2,
        """
        def again(future):
            return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

        total = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(again).wait()
        os.write(1, f"{total.item()}\\n".encode())
        dist.destroy_process_group()
        """,
    )
    assert (ended.returncode, ended.stdout) == (0, "4.0\n4.0\n"), ended.stderr


def test_one_that_fails_of_several_keeps_the_memory_of_the_others():
    """MPI still writes to it."""
    ended = mpi_script(
        1,
        """
        from mpi4py import MPI
        from distlab.mpi_progress import progress
        from distlab.mpi_tensors import raw
        from distlab.mpi_work import Work
        world, first, second = MPI.COMM_WORLD, torch.zeros(4), torch.zeros(4)
        requests = [(world.Irecv(raw(box), 0, tag), MPI.Status()) for box, tag in ((first, 1), (second, 2))]
        work = Work("both", None, timedelta(seconds=60), requests, [first, second], None, [], None)
        world.Isend(raw(torch.ones(8)), 0, 2)
        try:
            work.wait()
        except RuntimeError as error:
            print(error)
        print([tensor is first for tensor in progress()._abandoned[0].result()], flush=True)
        """,
    )
    assert ended.stdout.splitlines() == [
        "both failed in MPI: the message is longer than the tensor that receives it; "
        "send and recv tensors of one size.",
        "[True, False]",
    ], ended.stderr


def test_processes_that_mpiexec_did_not_start_are_told():
    """Without mpiexec MPI knows each process as a world of its own; the error says how to start them."""
    source = """
        from datetime import timedelta
        from torch.distributed import HashStore
        from distlab import mpi_world
        store = HashStore()
        store.set("mpi4py/1", "0")  # what the other rank says: that it is number 0 in MPI's world
        try:
            mpi_world.communicator(store, 0, 2, timedelta(seconds=1))
        except RuntimeError as error:
            print(error)
    """
    ended = run([sys.executable, "-c", textwrap.dedent(source)])
    assert ended.stdout == (
        "mpi4py needs 2 processes that one mpiexec started, and MPI knows 1 here. "
        "Start them with: mpiexec -n 2 python script.py\n"
    ), ended.stderr


def test_cells_run_on_ranks_of_mpiexec(nothing_left):
    """%%px as ever, and mpi4py's MPI is defined on every rank."""
    book = Notebook()
    try:
        book.run('%load_ext distlab\nimport distlab\ncluster = distlab.Cluster(2, engines="mpi", timeout=20)')
        assert book.status == "ok"
        shown = book.text("%%px\nprint(MPI.COMM_WORLD.allreduce(rank + 1), MPI.COMM_WORLD.rank == rank)")
        assert shown.count("3 True") >= 1
        assert "False" not in shown
    finally:
        book.client.stop_channels()
        book.manager.shutdown_kernel(now=True)
    assert wait_until_gone(lambda: processes_of(f"{book.pid}-")) == []
