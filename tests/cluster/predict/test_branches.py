"""Programs that branch on data: predicted if the step is the same either way, or else refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distlab
from distlab_predict import branches
from tests.cluster.predict.test_predict import FREE, NETWORK, layers
from tests.refused import raised


def steps(number, after_step, model=None):
    """Train for so many steps; after each one a function is called with its loss."""
    if model is None:
        model = layers()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters())
    for _ in range(number):
        loss = parallel(torch.ones(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if after_step(loss):
            break


def keeps_the_best(rank, world_size):
    best = float("inf")

    def look(loss):
        nonlocal best
        if loss.item() < best:  # asks
            best = loss.item()

    steps(2, look)


def compares_tensors(rank, world_size):
    """As nanoGPT does: a tensor of losses, of which one is compared."""
    losses = torch.zeros(2)

    def look(loss):
        losses[0] = loss.item()
        if losses.mean() < 1e9 or rank > 0:  # asks
            print("saved")

    steps(2, look)


def takes_the_smaller_one(rank, world_size):
    best = 9.9

    def look(loss):
        nonlocal best
        best = min(best, loss.item())  # asks

    steps(2, look)


def stops_early(rank, world_size):
    best = 9.9
    worse = 0

    def look(loss):
        nonlocal best, worse
        if loss.item() >= best:  # asks
            worse += 1
        return worse == 2

    steps(3, look)


def trains_until_it_is_good(rank, world_size):
    def look(loss):
        return bool(loss < 0.1)  # asks

    steps(10**9, look)


def fails_where_it_diverges(rank, world_size):
    def look(loss):
        if loss.item() > 1e3:  # asks
            raise ValueError("diverged")

    steps(2, look)


def copies_at_the_end(rank, world_size):
    """A copy after the last step is no part of it, and takes memory."""
    model = layers()
    copies = []

    def look(loss):
        if loss.item() < 9.9:  # asks
            for _ in range(4):
                copies.append(copy.deepcopy(model))

    steps(1, look, model)


SAME = [
    (keeps_the_best, ""),
    (compares_tensors, ""),
    (takes_the_smaller_one, ""),
    (stops_early, ", but the program ends after 2 steps"),
    (trains_until_it_is_good, ", but the program ends after 1 step"),
    (copies_at_the_end, ", but memory has 390 KiB at its peak"),
]


def line_that_asks(program):
    """The line of this file, "test_branches.py:12", with the remark "asks" in a program."""
    with open(__file__, encoding="utf-8") as file:
        lines = file.readlines()
    begin = program.__code__.co_firstlineno
    for number, line in enumerate(lines[begin:], begin + 1):
        if line.endswith("# asks\n"):
            return f"test_branches.py:{number}"
    raise AssertionError(f"{program.__name__} has no such line")


def assumed_of(program):
    found = distlab.predict(program, 8, NETWORK, FREE)
    (recording,) = found.recordings
    assert recording.assumed == found.table().notes
    return recording.assumed


@pytest.mark.parametrize(("program", "difference"), SAME)
def test_a_step_that_is_the_same_either_way_is_predicted_and_the_line_is_named(program, difference):
    line = line_that_asks(program)
    words = f"{line} depends on data, and is taken as False; with True the step is the same"
    assert assumed_of(program) == (words + difference,)


def test_what_the_other_answer_raises_is_said():
    line = line_that_asks(fails_where_it_diverges)
    words = (
        f"{line} depends on data, and is taken as False; with True the program raises ValueError"
    )
    assert assumed_of(fails_where_it_diverges) == (words,)


# in a cell, whose text is not in the process that records
ASSERTS = """
def asserts(rank, world_size):
    def look(loss):
        assert (
            loss.item()
            < 1e3
        ), "diverged"
        assert not loss > 1e3

    steps(2, look)
"""


def test_an_assertion_holds_as_in_a_training_that_works():
    cell = {"steps": steps, "__name__": "__main__"}
    exec(compile(ASSERTS, "/tmp/ipykernel_1/2.py", "exec"), cell)
    assert assumed_of(cell["asserts"]) == ()


def test_what_a_finite_number_decides_is_decided():
    def program(rank, world_size):
        def look(loss):
            number = loss.item()
            if number != number or number == float("inf"):
                raise ValueError("diverged")

        steps(2, look)

    assert assumed_of(program) == ()


# --- steps that depend on data ---


def computes_more(rank, world_size):
    model = layers()
    more = nn.Linear(64, 64)

    def look(loss):
        if loss.item() > 0.5:
            more(torch.ones(4, 64))

    steps(2, look, model)


def computes_more_where_both_agree(rank, world_size):
    """The second line is reached only with the other answer of the first."""
    more = nn.Linear(64, 64)

    def look(loss):
        if loss.item() > 0.5:
            print("high")
            if loss.item() < 0.7:
                more(torch.ones(4, 64))

    steps(2, look)


def counts_what_it_keeps(rank, world_size):
    """With the other answer it asks for a size, which nobody knows."""

    def look(loss):
        if loss.item() > 0.5:
            print(range(int(loss.item())))

    steps(2, look)


REFUSED = [
    (computes_more, "if loss.item() > 0.5:"),
    (computes_more_where_both_agree, "if loss.item() < 0.7:"),
    (counts_what_it_keeps, "print(range(int(loss.item())))"),
]


@pytest.mark.parametrize(("program", "line"), REFUSED)
def test_a_step_that_depends_on_data_is_refused_with_its_line(program, line):
    error = str(raised(distlab.RankError, distlab.predict, program, 8, NETWORK, FREE))
    assert "raised NotImplementedError: what comes next depends on the value of a tensor" in error
    assert line in error


def test_more_lines_than_are_tried_are_refused(monkeypatch):
    def program(rank, world_size):
        def look(loss):
            if loss.item() < 0.1:
                print("good")
            if loss.item() < 0.2:
                print("fair")

        steps(2, look)

    monkeypatch.setattr(branches, "MOST_LINES", 1)
    error = str(raised(distlab.RankError, distlab.predict, program, 8, NETWORK, FREE))
    assert "only 1 line that the values of tensors decide can be tried both ways" in error
    assert "if loss.item() < 0.2:" in error


def test_a_float_of_a_tensor_is_refused_with_what_to_write_instead():
    def program(rank, world_size):
        steps(2, lambda loss: print(float(loss)))

    error = str(raised(distlab.RankError, distlab.predict, program, 8, NETWORK, FREE))
    assert "float(tensor) needs a value, and here tensors have only shapes: write tensor" in error
    assert "print(float(loss))" in error


def test_an_error_names_the_answers_before_it():
    def program(rank, world_size):
        def look(loss):
            is_good = loss < 0.1
            if not is_good:
                raise ValueError("diverged")

        steps(2, look)

    error = str(raised(distlab.RankError, distlab.predict, program, 8, NETWORK, FREE))
    assert "ValueError: diverged\ntest_branches.py:" in error
    assert " depends on data, and was taken as False." in error
