"""Messages as JSON, and which sources are the learner's."""

import torch

from distlab.wire.messages import Answer, CallRecord, Line, RankStatus, from_json, is_learners, to_json


def test_an_answer_travels_as_json():
    """What the rank sends is what the notebook receives, with classes and tuples."""
    call = CallRecord("recv", "message", (0, 1), tensors=(("float32", (2,)),), lines=(Line(5, "dist.recv(t)", "f"),))
    answer = Answer(7, RankStatus(1, "idle", call, history=(call,), mark=(1, 2)), ("x", "y"))
    assert from_json(to_json(answer)) == answer


def test_a_cell_and_a_module_are_the_learners():
    """What is installed is not, in whichever environment, nor a program that is given with -c."""
    assert is_learners("/tmp/ipykernel_7/123.py")
    assert is_learners(__file__)
    assert not is_learners("<string>")
    assert not is_learners(torch.__file__)
    assert not is_learners("/elsewhere/lib/python3.9/site-packages/numpy/__init__.py")
