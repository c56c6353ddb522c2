"""Which sources are the learner's, and of which of them a report shows lines."""

import subprocess
import sys

import torch

from distlab.wire.messages import is_learners, is_shown

STARTED = "import threading; from distlab.rank import status; print(status._lines(threading.get_ident()))"


def test_a_cell_and_a_module_are_the_learners():
    """What is installed is not, in whichever environment."""
    assert is_learners("/tmp/ipykernel_7/123.py")
    assert is_learners(__file__)
    assert not is_learners(torch.__file__)
    assert not is_learners("/elsewhere/lib/python3.9/site-packages/numpy/__init__.py")


def test_the_program_that_starts_a_rank_is_no_line_of_the_learners():
    """It is given with -c, and from Python 3.13 on its text is known, too."""
    assert is_learners("<string>")  # also what a learner has compiled from text
    assert not is_shown("<string>")
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "()"
