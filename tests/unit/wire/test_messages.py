"""Messages as JSON, and which sources are the learner's."""

import torch

from distlab.wire.messages import Answer, Begun, CallRecord, Line, RankStatus, from_json, is_learners, is_shown, to_json


def test_an_answer_travels_as_json():
    """What the rank sends is what the notebook receives, with classes, tuples and dicts."""
    call = CallRecord("recv", "message", (0, 1), tensors=(("float32", (2,)),), lines=(Line(5, "dist.recv(t)", "f"),))
    answer = Answer(7, RankStatus(1, "idle", call, begun={"0": Begun(3, (0, 1))}, mark=(1, 2)), ("x", "y"))
    assert from_json(to_json(answer)) == answer


def test_a_cell_and_a_module_are_the_learners():
    """What is installed is not, in whichever environment; no line of a program that is given with -c is shown."""
    assert is_learners("/tmp/ipykernel_7/123.py")
    assert is_learners(__file__)
    assert is_learners("<string>")  # also what a learner has compiled from text
    assert not is_shown("<string>")
    assert not is_learners(torch.__file__)
    assert not is_learners("/elsewhere/lib/python3.9/site-packages/numpy/__init__.py")
