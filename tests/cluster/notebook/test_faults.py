"""Mistakes in cells and runs: the error in full, and that the cluster still works afterwards."""

import sys
import threading
import time

import pytest
import torch

import distlab
from distlab.diagnosis.afterwards import GROUPS_GONE
from tests.cluster.conftest import stuck
from tests.cluster.zoo_of_pipelines import pipeline, step
from tests.refused import raised


def test_an_exception_names_rank_line_and_the_others(usable):
    """The culprit's own lines with their file, and who was freed long before the timeout."""

    def fails(rank, world_size):
        if rank == 2:
            raise ValueError("no")
        if rank > 0:
            dist.barrier()  # noqa: F821

    began = time.monotonic()
    error = raised(distlab.RankError, usable.run, fails)
    assert time.monotonic() - began < 10  # the group's timeout is 60 s
    line = fails.__code__.co_firstlineno
    assert str(error) == (
        "rank 2 raised ValueError: no\n"
        f'  rank 2   test_faults.py:{line + 2} in fails   raise ValueError("no")\n'
        "ranks 1 and 3 waited in communication and could not go on:\n"
        f"  ranks 1 and 3   test_faults.py:{line + 4} in fails   dist.barrier()  # noqa: F821\n"
        "Rank 0 finished.\n"
        "The process group is rebuilt and variables are kept: change the cell and run it again."
    )
    assert (error.failures[0].rank, error.finished) == (2, (0,))
    assert "ValueError: no" in error.failures[0].traceback


def test_lines_inside_torch_are_left_out(usable):
    """The traceback is cut to the learner's own lines, also when the error comes out of torch."""

    def mismatched(rank, world_size):
        return torch.ones(2) @ torch.ones(3)

    error = raised(distlab.RankError, usable.run, mismatched)
    lines = {(line.number, line.function) for failure in error.failures for line in failure.lines}
    assert lines == {(mismatched.__code__.co_firstlineno + 1, "mismatched")}
    assert str(error).startswith("ranks 0-3 raised RuntimeError: ")
    assert "rebuilt" not in str(error)


def test_training_that_is_ended_in_its_midst_keeps_every_rank(usable):
    """Wherever a pipeline's messages are cut, no rank is lost, and none stays behind.

    gloo forgets a send that it cannot write any more; with both ways of its sockets shut, one try
    in ten lost a rank.
    """

    def train(rank, world_size):
        schedule = pipeline(rank, world_size)
        while True:
            step(schedule, rank, world_size)

    # imports it, which would not be torn
    assert len(usable.run(lambda rank, n: str(pipeline(rank, n)))) == 4
    usable.push({"kept": 1})
    for tries in range(8):
        error = raised(distlab.RankTimeout, usable.run, train, timeout=0.2 + tries / 50)
        assert "Variables are kept" in str(error)
    assert usable.pull("kept") == [1] * 4


def test_a_device_mesh_is_made_again_after_heal(usable, capsys):
    """One of a group that is gone raises an error, whose advice works."""

    def make(rank, world_size):
        from torch.distributed.device_mesh import init_device_mesh

        sys.modules["__main__"].mesh = init_device_mesh(
            "cpu", (2, 2), mesh_dim_names=("rows", "columns")
        )

    def add_rows(rank, world_size):
        total = torch.full((1,), rank + 1)
        dist.all_reduce(total, group=mesh.get_group("rows"))  # noqa: F821
        return total.item()

    usable.run(make)
    assert usable.run(add_rows) == [4, 6, 4, 6]
    usable.heal()
    assert capsys.readouterr().out == f"{GROUPS_GONE}\n"
    words = str(raised(distlab.RankError, usable.run, add_rows))
    assert "RuntimeError: Could not resolve the process group registered under the name" in words
    assert "a device mesh with mesh = init_device_mesh(...)" in words
    usable.run(make)
    assert usable.run(add_rows) == [4, 6, 4, 6]
    with pytest.raises(
        distlab.RankError, match=r"\. Groups .*, and device meshes, are gone: make them again\.$"
    ):
        usable.run(lambda rank, world_size: (rank < 3 and dist.barrier()) or 1 // (rank - 3))  # noqa: F821


@pytest.mark.parametrize("pause", [0.0, 0.3], ids=["not begun", "blocked"])
def test_interrupt_from_outside(usable, pause):
    """cluster.interrupt() frees what ipyparallel's client sent, also what has yet to begin."""
    usable.push({"kept": 5})
    pending = usable.client[:].execute("dist.recv(torch.zeros(1), src=(rank + 1) % 4)", block=False)
    time.sleep(pause)
    began = time.monotonic()
    usable.interrupt()
    assert time.monotonic() - began < 10
    assert {reply.ename for reply in pending.get(return_exceptions=True)} <= {
        "RuntimeError",
        "KeyboardInterrupt",
    }
    usable.run(lambda rank, world_size: dist.destroy_process_group())  # noqa: F821
    usable.heal()
    assert usable.pull("kept") == [5] * 4


# --- what is refused ---


def test_what_cannot_be_pickled_is_refused(usable):
    """A lock in a closure at once, a generator as a value with its rank; with the reason."""
    lock = threading.Lock()
    error = raised(distlab.errors.SerializationError, usable.run, lambda rank, world_size: lock)
    assert str(error).startswith(
        "The function or one of its arguments cannot be sent to the ranks (TypeError: cannot"
    )
    error = raised(
        distlab.errors.SerializationError, usable.run, lambda rank, world_size: (i for i in [1])
    )
    assert str(error).startswith(
        "The value of rank 0, generator, cannot be sent to the notebook (TypeError: cannot"
    )


RANKS = (
    "ranks must be a list of different ranks from 0 to 3, got {}. "
    "Leave out ranks= to use all of them."
)
CALL = "Call cluster.run(fn, *args) with the function itself."
REFUSED = [
    (TypeError, f"fn must be callable, got 3. {CALL}", lambda c: c.run(3)),
    (
        TypeError,
        "names must be a mapping of names to values, got ['x']. Call cluster.push({\"x\": 1}).",
        lambda c: c.push(["x"]),
    ),
    (ValueError, RANKS.format([1, 1]), lambda c: c.run(stuck, ranks=[1, 1])),
]


def test_a_name_that_is_not_defined_cannot_be_pulled(usable):
    """As in Python."""
    usable.push({"here": 1}, ranks=[0])
    words = str(raised(distlab.RankError, usable.pull, ["here"]))
    assert words.startswith("ranks 1-3 raised NameError: name 'here' is not defined\n")


@pytest.mark.parametrize(("kind", "message", "call"), REFUSED)
def test_bad_arguments_are_refused_at_once(usable, kind, message, call):
    """A bad argument is an ArgumentError in the house form, and the cluster works on."""
    error = raised(distlab.ArgumentError, call, usable)
    assert str(error) == message
    assert isinstance(error, kind)
