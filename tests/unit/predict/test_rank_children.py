"""The child that records a rank, where distlab itself fails in it.

A Python of its own, which has imported torch for all tests, forks a child for each fault.
"""

import json

import pytest

from tests.processes import python

FAULTS = [
    "1 / 0",
    "return lambda: None",
    "raise KeyboardInterrupt('why')",
    "sys.exit('why')",
    "sys.exit()",
    "sys.exit(3)",
    "os.write(2, b'why'); sys.exit(3)",
    "os._exit(3)",
    "os.write(2, b'why'); os._exit(3)",
]
PROGRAM = """
import json, os, pickle, sys
from distlab_predict import rank_children

parent = os.getpid()
found = {}
for fault in json.loads(sys.argv[1]):
    exec(f"def fails(*_): {fault}")
    rank_children.record = fails
    outcome = pickle.loads(rank_children.start(None, 3).receive().pickled)
    found[fault] = f"{outcome.rank} {outcome.kind} {outcome.message}"
    assert os.getpid() == parent
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def outcomes():
    """What is said of rank 3, by fault; no child has gone on as its parent."""
    done = python("-c", PROGRAM, json.dumps(FAULTS))
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_an_exception_in_the_child_is_its_outcome(outcomes):
    """What cannot be pickled is an exception, too."""
    assert outcomes["1 / 0"] == "3 ZeroDivisionError division by zero"
    _, kind, *_ = outcomes["return lambda: None"].split()
    assert kind in ("PicklingError", "AttributeError")


def test_what_a_program_raises_is_its_outcome_even_if_it_is_no_Exception(outcomes):
    assert outcomes["raise KeyboardInterrupt('why')"] == "3 KeyboardInterrupt why"


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [("sys.exit('why')", 1, " Its last lines:\nwhy"), ("sys.exit()", 0, "")],
)
def test_a_child_exits_as_a_script_would(outcomes, fault, status, words):
    """Python writes the text that sys.exit is given to stderr."""
    said = f"3 RuntimeError The recording process ended (exit status {status})."
    assert outcomes[fault] == said + words


@pytest.mark.parametrize("fault", ["sys.exit(3)", "os._exit(3)"])
def test_a_child_that_ends_by_itself_is_reported(outcomes, fault):
    said = "3 RuntimeError The recording process ended (exit status 3)."
    assert outcomes[fault] == said
    assert outcomes[f"os.write(2, b'why'); {fault}"] == said + " Its last lines:\nwhy"
