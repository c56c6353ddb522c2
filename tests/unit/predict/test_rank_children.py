"""The child that records a rank, where distlab itself fails in it.

Each test runs in a Python of its own, which forks.
"""

import pytest

from tests.processes import python

PROGRAM = """
import os, sys
from distlab_predict import rank_children
from distlab_predict.nodes import Run

def fails(*_):
    FAULT

rank_children.record = fails
parent = os.getpid()
outcome = rank_children.start(None, 3).receive()
print(outcome.rank, outcome.kind, outcome.message)
print(os.getpid() == parent)
"""


def result(fault):
    done = python("-c", PROGRAM.replace("FAULT", fault))
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_an_exception_in_the_child_is_its_outcome():
    """It does not go on as its parent; what cannot be pickled is an exception, too."""
    assert result("1 / 0") == ["3 ZeroDivisionError division by zero", "True"]
    words, same = result("return lambda: None")
    assert words.split()[1] in ("PicklingError", "AttributeError")
    assert same == "True"


def test_what_a_program_raises_is_its_outcome_even_if_it_is_no_Exception():
    assert result("raise KeyboardInterrupt('why')") == ["3 KeyboardInterrupt why", "True"]


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [("sys.exit('why')", 1, [" Its last lines:", "why"]), ("sys.exit()", 0, [""])],
)
def test_a_child_exits_as_a_script_would(fault, status, words):
    """Python writes the text that sys.exit is given to stderr."""
    first, *more = words
    said = f"3 RuntimeError The recording process ended (exit status {status}).{first}"
    assert result(fault) == [said, *more, "True"]


@pytest.mark.parametrize("fault", ["sys.exit(3)", "os._exit(3)"])
def test_a_child_that_ends_by_itself_is_reported(fault):
    said = "3 RuntimeError The recording process ended (exit status 3)."
    assert result(fault) == [said, "True"]
    assert result(f"os.write(2, b'why'); {fault}") == [said + " Its last lines:", "why", "True"]
