"""What the check of lab 08's "Your own train.py" says of runs, without starting any."""

from dataclasses import replace

import pytest

from distlab_course.exercises import train_scripts
from distlab_course.exercises.train_scripts import EPOCHS, Run, error_in
from distlab_course.watched_training import Notes

STEPS = 22  # of 32 samples of a rank, in an epoch
LINES = "".join(f"epoch {epoch}: loss 1.0000\n" for epoch in range(EPOCHS))
FILES = {"train.py", "checkpoint.pt"}
RENAMED = (
    "[rank0]: FileNotFoundError: [Errno 2] No such file or directory: "
    "'checkpoint.pt.partial' -> 'checkpoint.pt'\n"
)


def steps_of(rank, epochs):
    """The samples of a rank, step by step: each epoch has another order."""
    steps = []
    for epoch in epochs:
        for step in range(STEPS):
            first = ((step + epoch) % STEPS * 2 + rank) * 32
            steps.append(list(range(first, first + 32)))
    return steps


def notes(rank, epochs=range(EPOCHS), **changes):
    """What a right script leaves behind."""
    steps = steps_of(rank, epochs)
    weights = [100.0 - step for step in range(len(steps))]
    saves = len(epochs) if rank == 0 else 0
    own = Notes(2, steps, [1.0] * len(steps), saves, 0, [], weights)
    return replace(own, **changes)


def right_run():
    """A run that nobody disturbed."""
    return Run(LINES, [notes(0), notes(1)], [None, None], FILES)


def killed_run(**changes):
    """A run whose rank 1 was killed in epoch 2, and which has continued."""
    last = {"loads": 1, "restored": ["model", "optimizer"], **changes}
    again = [notes(rank, range(2, EPOCHS), **last) for rank in range(2)]
    return Run(LINES, [notes(0, range(2)), None], again, FILES)


@pytest.fixture
def fault_of(monkeypatch):
    """What is said of two runs."""

    def found(whole, killed=None):
        runs = [whole, killed]
        monkeypatch.setattr(train_scripts, "run", lambda *_, **__: runs.pop(0))
        return train_scripts.fault_of("train.py")

    return found


def with_notes(**changes):
    """A run in which something is different on both ranks."""
    return right_run()._replace(first=[notes(rank, **changes) for rank in range(2)])


def test_a_right_script_has_no_fault(fault_of):
    """Both runs end with the same loss."""
    assert fault_of(right_run(), killed_run()) == ""


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (with_notes(world_size=0), "nobody called dist.init_process_group"),
        (with_notes(steps=[]), "No rank called optimizer.step()."),
        (with_notes(steps=steps_of(0, range(EPOCHS))), "a DistributedSampler?"),
        (with_notes(saves=EPOCHS), "Both ranks write the checkpoint"),
        (right_run()._replace(printed=RENAMED, first=[notes(0), None]), "Both ranks write"),
        (with_notes(saves=0), "No rank writes a checkpoint"),
        (right_run()._replace(printed=LINES * 2), "Both ranks print"),
        (right_run()._replace(printed=""), "Nobody prints a line"),
        (right_run()._replace(printed=LINES.replace("1.0", "1.5")), "of all ranks"),
        (right_run()._replace(files=set()), "There is no checkpoint.pt afterwards"),
    ],
)
def test_a_fault_of_the_run_that_nobody_disturbs(fault_of, run, words):
    """Each is named by what is missing."""
    assert words in fault_of(run)


def test_an_order_that_never_changes(fault_of):
    """The sampler was not told the epoch."""
    first = [notes(rank, steps=steps_of(rank, [0] * EPOCHS)) for rank in range(2)]
    assert "Who tells the sampler the epoch?" in fault_of(right_run()._replace(first=first))


def test_ranks_that_part(fault_of):
    """Nothing averages their gradients."""
    other = notes(1)
    other.weights[3] += 1
    found = fault_of(right_run()._replace(first=[notes(0), other]))
    assert found == "After step 3 the ranks' weights differ. Who averages the gradients?"


@pytest.mark.parametrize(
    ("killed", "words"),
    [
        (killed_run(loads=0), "No rank read the checkpoint"),
        (killed_run(steps=[[]] * STEPS * EPOCHS), "began with epoch 0 again"),
        (killed_run(steps=[[]] * STEPS * 3), "repeated epoch 1"),
        (killed_run(steps=[[0]] * STEPS * 2), "other batches than without the kill"),
        (killed_run()._replace(printed="epoch 3: loss 1.2\n"), "something is missing in the"),
        (killed_run()._replace(second=[None, None]), "a rank left no trace"),
    ],
)
def test_a_fault_of_the_run_with_a_kill(fault_of, killed, words):
    """The script resumes, or does not, and the check says how."""
    assert words in fault_of(right_run(), killed)


def test_momentum_that_is_lost(fault_of):
    """The losses differ, and the optimizer got no state."""
    killed = killed_run(restored=["model"])._replace(printed="epoch 3: loss 1.2\n")
    assert "because the optimizer did not get its momentum back" in fault_of(right_run(), killed)


def test_the_error_is_the_ranks_own():
    """torchrun's ChildFailedError at the end says nothing about the script."""
    printed = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: failed
[rank0]: NameError: name 'ddp' is not defined
"""
    assert error_in(printed) == "NameError: name 'ddp' is not defined"


def test_a_script_has_passed_if_its_last_check_has(monkeypatch):
    """Other scripts do not count, nor what the same one did before."""
    assert not train_scripts.has_passed("train.py")
    monkeypatch.setattr(train_scripts, "fault_of", lambda path: "")
    assert train_scripts.checked("train.py") == ""
    assert train_scripts.has_passed("train.py")
    assert not train_scripts.has_passed("other.py")
    monkeypatch.setattr(train_scripts, "fault_of", lambda path: "It is wrong.")
    assert train_scripts.checked("train.py") == "It is wrong."
    assert not train_scripts.has_passed("train.py")
