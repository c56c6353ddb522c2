"""A mistake that the second of two runs does not show is kept."""

from distlab.comparison.compare import _with_passing
from distlab.comparison.findings import Cause, Finding
from distlab.comparison.verdict import Comparison

FACTOR = Finding(Cause.GRADIENT_FACTOR, "The gradient is twice the right one.", world_size=4)
HINDERS = Finding(Cause.NOT_SEEN, "A hook is not known.", world_size=4, hinders=True)


def verdict(*findings):
    return Comparison(findings, (2, 4), 1, 3, 4, {2: (), 4: ()})


def test_a_mistake_that_comes_and_goes_is_none_that_is_over():
    found = _with_passing(verdict(FACTOR), verdict())
    assert not found
    assert "on 4 ranks: the ranks do not do the same twice." in repr(found)
    assert "The gradient is twice the right one." in repr(found)


def test_what_both_runs_show_is_said_once():
    found = _with_passing(verdict(FACTOR), verdict(FACTOR))
    assert found.findings == (FACTOR,)


def test_what_a_closer_look_has_settled_is_settled():
    """It was no mistake, but something that could not be judged."""
    assert _with_passing(verdict(HINDERS), verdict())
