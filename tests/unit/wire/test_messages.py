"""Which sources are the learner's."""

import torch

from distlab.wire.messages import is_learners


def test_a_cell_and_a_module_are_the_learners():
    """What is installed is not, in whichever environment, nor a program that is given with -c."""
    assert is_learners("/tmp/ipykernel_7/123.py")
    assert is_learners(__file__)
    assert not is_learners("<string>")
    assert not is_learners(torch.__file__)
    assert not is_learners("/elsewhere/lib/python3.9/site-packages/numpy/__init__.py")
