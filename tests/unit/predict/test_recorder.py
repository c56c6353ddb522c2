"""The child that records a rank, where distlab itself fails in it."""

from tests.processes import python

PROGRAM = """
import os, sys
from distlab_predict import recorder
from distlab_predict.nodes import Run

def fails(*_):
    FAULT

recorder.record = fails
parent = os.getpid()
outcome = recorder.start(None, 3)
try:
    said = outcome.recv()
    print(said.kind, said.message)
except EOFError:
    print("ended")
os.wait()
print(os.getpid() == parent)
"""


def result(fault):
    done = python("-c", PROGRAM.replace("FAULT", fault))
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_an_exception_in_the_child_is_its_outcome():
    """It neither goes on as its parent, nor writes a traceback; also if it cannot be pickled."""
    assert result("1 / 0") == ["ZeroDivisionError division by zero", "True"]
    (words, same) = result("return lambda: None")
    assert (words.split()[0] in ("PicklingError", "AttributeError"), same) == (True, "True")
    assert result("sys.exit(3)") == ["ended", "True"]
