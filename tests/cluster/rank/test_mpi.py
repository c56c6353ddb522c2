"""Ranks that mpiexec starts, and the backend over mpi4py: results are those on gloo."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import distlab
from distlab.diagnosis import endings
from distlab.notebook import mpiexec
from tests.cluster.backend_programs import PROGRAMS
from tests.cluster.conftest import dies, kill, stuck, sum_of_ranks, wait_until_gone
from tests.cluster.programs import correct_programs
from tests.cluster.zoo_of_collectives import the_last_rank_never_comes
from tests.cluster.zoo_of_messages import from_any_source_but_nobody_sends
from tests.refused import raised

CLUSTER = {"n": 3, "engines": "mpi", "backend": "distlab_course.mpi_backend", "timeout": 60}
# no thread of this backend looks after a Work that nobody waits for while nothing else communicates
UNWAITED = {
    "a_work_that_is_dropped",
    "joined_inputs_and_many_small_sums",
}  # C++ waits for the second
ON_MPI = [name for name in PROGRAMS if name not in UNWAITED]


@pytest.mark.parametrize("name", ON_MPI)
def test_a_program_gives_on_mpi_what_it_gives_on_gloo(on_gloo, usable, name):
    """Collectives, dtypes and operations, messages, groups, async Work, layouts, and DDP."""
    assert usable.run(PROGRAMS[name]) == on_gloo[name]


REFUSED = {  # from words of the error to the call
    "Use one of SUM, MIN, MAX, BAND, BOR, BXOR, PRODUCT, AVG.": lambda rank, n: dist.reduce(
        torch.ones(2), 0, torch.distributed._make_nccl_premul_sum(2.0)
    ),
    "all_gather needs a tensor of 3 times 4 elements, got 3.": lambda rank, n: (
        dist.all_gather_into_tensor(torch.ones(3), torch.ones(4))
    ),
}


@pytest.mark.parametrize(("words", "call"), REFUSED.items())
def test_what_is_not_supported_is_an_error(usable, words, call):
    """On every rank alike, so that nobody waits."""
    failures = raised(distlab.RankError, usable.run, call).failures
    assert [words in failure.message for failure in failures] == [True] * 3, failures


@pytest.mark.parametrize(
    ("sent", "received", "words"),
    [
        (4, 2, "recv failed in MPI: "),
        (2, 4, "recv got 8 bytes for a tensor of 16; send and recv tensors of one size."),
    ],
)
def test_a_message_of_another_size_is_an_error(usable, sent, received, words):
    """gloo ends the process for it; here the receiver raises, and the cluster goes on."""

    def mismatch(rank, world_size):
        if rank == 0:
            dist.send(torch.ones(sent), 1)
        elif rank == 1:
            dist.recv(torch.ones(received), 0)

    error = raised(distlab.RankError, usable.run, mismatch)
    assert [failure.rank for failure in error.failures][:1] == [1]
    assert words in str(error)


# --- the cluster's promises ---


def test_a_deadlock_over_mpi_is_named_and_freed(usable):
    """Ranks that wait in MPI are told apart, brought back, and keep their variables."""
    usable.push({"kept": 7})
    for program, ranks in (
        (from_any_source_but_nobody_sends, [0]),
        (stuck, [0, 1, 2]),
        (the_last_rank_never_comes, [0, 1]),
    ):
        error = raised(distlab.DeadlockError, usable.run, program)
        assert [failure.rank for failure in error.failures] == ranks
        assert error.finished == tuple(rank for rank in range(3) if rank not in ranks)
    assert usable.pull("kept") == [7] * 3


def test_correct_programs_over_mpi_raise_no_alarm(usable):
    """10 random correct programs, one with a rank that is slow."""
    steps = usable.run(correct_programs, range(5000, 5010), 1.5)
    assert steps == [steps[0]] * usable.n


# --- mpiexec under a cluster ---


def test_a_death_between_cells_is_told_with_the_next(cluster):
    """No test uses these ranks afterwards: mpiexec has ended them all."""
    kill(cluster, 2)
    assert wait_until_gone(lambda: cluster.client.ids) == []
    with pytest.raises(distlab.ClusterError, match=r"^The cluster is incomplete: rank \d died\."):
        cluster.run(sum_of_ranks)


def shared(rank, world_size):
    """The memory that this rank shares with others."""
    return re.findall(r"/dev/shm/mpich\S+", Path("/proc/self/maps").read_text())


def test_a_rank_that_dies_takes_the_others_with_it_and_restart_brings_all_back(monkeypatch):
    """That mpiexec ends every rank is said at once.

    What they share over /dev/shm is gone with the cluster, however slow this machine is.
    """
    monkeypatch.setattr(mpiexec, "MPI_END_SECONDS", 0.0)
    with distlab.Cluster(2, engines="mpi", timeout=30) as cluster:
        assert cluster.run(sum_of_ranks) == [1.0] * 2
        error = raised(distlab.RankDied, cluster.run, dies)
        assert str(error) == (
            "rank 1 died.\n"
            "MPI ends a whole program when one of its processes dies: "
            "mpiexec has ended rank 0 too.\n"
            "All variables are lost: call cluster.restart() for new ranks."
        )
        assert [failure.rank for failure in error.failures] == [1, 0]
        assert endings.WITH_ANOTHER.words() in repr(cluster)
        with pytest.raises(
            distlab.ClusterError,
            match=r"^The cluster is incomplete: rank 1 died\. Call cluster\.rest",
        ):
            cluster.run(sum_of_ranks)
        cluster.restart()
        held = {path for paths in cluster.run(shared) for path in paths}
    assert held
    assert not [path for path in held if os.path.exists(path)]


# --- the backend without a cluster ---

SCRIPT = """
    import os
    from datetime import timedelta
    import torch
    import torch._dynamo  # before the group, or torch 2.13 leaves threads of it alive
    import torch.distributed as dist
    from distlab_course import mpi_backend
    dist.init_process_group(mpi_backend.NAME, timeout=timedelta(seconds=60))
    rank, n = dist.get_rank(), dist.get_world_size()
"""


def mpi_script(n, body):
    """Run the lines of SCRIPT and then `body` on `n` processes that mpiexec starts."""
    source = textwrap.dedent(SCRIPT) + textwrap.dedent(body)
    command = [mpiexec.find_mpiexec(), "-n", str(n), *mpiexec.arguments()]
    command += [sys.executable, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_a_script_needs_only_mpiexec(monkeypatch):
    """No address or number is given; what `then` is given may wait for a Future."""
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    ended = mpi_script(
        3,
        """
        from torch.nn.parallel import DistributedDataParallel
        net = DistributedDataParallel(torch.nn.Linear(2, 2))
        net(torch.ones(1, 2)).sum().backward()

        def again(future):  # as torch's own PowerSGD hook does
            return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

        total = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(again).wait()
        # at once, or the lines of two ranks mix
        os.write(1, f"sum {total.item()} at {os.environ['MASTER_ADDR']}\\n".encode())
        dist.destroy_process_group()
        """,
    )
    assert (ended.returncode, ended.stdout) == (0, "sum 9.0 at localhost\n" * 3), ended.stderr


def test_a_wait_that_is_too_long_breaks_the_group(tmp_path):
    """The words are gloo's; the group begins nothing more, and a new one works.

    At exit all processes are ended, because MPI cannot end while an operation is pending; what they
    print last, mpiexec may drop.
    """
    file = tmp_path / "said"
    ended = mpi_script(
        2,
        f"""
        said = open({str(file)!r}, "a")
        from torch.nn.parallel import DistributedDataParallel
        group, other = (dist.new_group(timeout=timedelta(seconds=2)) for _ in range(2))
        net = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=other)
        if rank == 0:
            for call in (
                lambda: dist.all_reduce(torch.ones(1), group=group),
                lambda: dist.barrier(group),
                lambda: net(torch.ones(1, 2)).sum().backward(),
            ):
                try:
                    call()
                except RuntimeError as error:
                    print(str(error).splitlines()[0], file=said, flush=True)
        dist.barrier()
        total = torch.ones(1)
        dist.all_reduce(total, group=dist.new_group())
        print("again:", total.item(), file=said, flush=True)
        dist.barrier()
        """,
    )
    *printed, first, second = file.read_text().splitlines()
    late = "Timed out waiting 2000ms for all_reduce operation to complete"
    assert printed[:2] == [
        late,
        f"barrier cannot begin: the group is broken ({late}). Make it again.",
    ], ended.stderr
    assert late in printed[2]
    assert (first, second) == ("again: 2.0", "again: 2.0")
    assert ended.returncode != 0


def test_what_nobody_waits_for_is_left_to_mpi():
    """A recv that was given up and came nevertheless does not keep MPI from ending.

    The memory of a message is left alone until MPI has ended, which is later than Python.
    """
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
    late = "Timed out waiting 1000ms for recv operation to complete\n"
    assert (ended.returncode, ended.stdout) == (0, f"{late}7.0 7.0\n"), ended.stderr


def test_ranks_that_mpiexec_did_not_start_are_refused():
    """MPI knows each process as a world of its own; the error says how to start them."""
    error = raised(distlab.ClusterError, distlab.Cluster, 2, backend="distlab_course.mpi_backend")
    assert "mpi4py needs 2 processes that one mpiexec started, and MPI knows 1 here" in str(error)
    assert 'Cluster(2, engines="mpi", backend="distlab_course.mpi_backend")' in str(error)
