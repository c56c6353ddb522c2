"""An assert that asks for a truth gets the one with which it holds.

pytest would make other bytecode of these asserts, and must not (PYTEST_DONT_REWRITE).
"""

import sys

import pytest

from distlab_predict.assertions import needed


class Asks:
    """Its comparisons give the truth that an assert needs, or False where no assert asks."""

    def __init__(self):
        self.found = []

    def __lt__(self, other):
        self.found.append(needed(sys._getframe(1)))
        return bool(self.found[-1])

    __gt__ = __lt__


def on_a_line(loss):
    assert loss < 5, "diverged"


def on_some_lines(loss):
    assert (
        loss
        < 5
    ), f"diverged: {loss}"  # fmt: skip


def turned_around(loss):
    assert not loss > 5


def with_another_truth(loss):
    assert loss < 7 and loss < 5  # noqa: PT018 - what is tried


def of_two_truths_none(loss):
    assert not (loss < 1 or loss > 5)  # noqa: PT018 - what is tried


def between(loss):
    assert 0 < loss < 5


# so far away that an instruction has a prefix
FAR = "def far(loss):\n    x = 0\n" + "    x += x + x\n" * 200
FAR += f"    assert 0 < loss < 5, [{'x + x, ' * 400}]\n"


def far(loss):
    cell = {}
    exec(FAR, cell)
    cell["far"](loss)


def by_a_function(loss):
    assert all([loss < 5])


@pytest.mark.parametrize(
    ("program", "truths"),
    [
        (on_a_line, [True]),
        (on_some_lines, [True]),
        (turned_around, [False]),
        (with_another_truth, [True, True]),
        (of_two_truths_none, [False, False]),
        (between, [True, True]),
        (by_a_function, [True]),
        (far, [True, True]),
    ],
)
def test_an_assert_holds(program, truths):
    loss = Asks()
    program(loss)
    assert loss.found == truths


def in_an_if(loss):
    if loss < 5:
        raise AssertionError


def kept(loss):
    best = loss < 5
    assert not best


def returned(loss):
    return loss < 5


@pytest.mark.parametrize("program", [in_an_if, kept, returned])
def test_elsewhere_no_assert_asks(program):
    loss = Asks()
    program(loss)
    assert loss.found == [None]
