"""The group of a predicted rank has nothing of gloo."""

import inspect

from distlab.simulated import backend
from distlab_predict import group

GLOO = {"_gloo", "_call_gloo"}  # of a simulated group


def asks_gloo(method):
    return not GLOO.isdisjoint(inspect.unwrap(method).__code__.co_names)


def test_it_inherits_no_method_that_asks_gloo():
    """It has no gloo group, so that such a method would end in an AttributeError."""
    asking = set()
    for name, method in vars(backend.Group).items():
        if inspect.isfunction(method) and asks_gloo(method):
            asking.add(name)
    assert {"begin_collective", "recv_anysource", "shutdown"} <= asking
    assert asking - vars(group.Group).keys() == {"_call_gloo"}  # which only the others call
