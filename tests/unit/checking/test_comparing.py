"""What a verdict says of a wrong value, from what the reference and the answer did."""

import torch

from distlab.checking import Exercise
from distlab.checking.comparing import compare
from distlab.checking.observed import Observed


def why(events):
    """The reason for a tensor that is twice as large as the reference's."""
    given = (torch.tensor([1.0, 3.0]),)
    right = [Observed([None, [torch.tensor([2.0, 7.0])]], given, events, "") for _ in range(2)]
    wrong = [Observed([None, [torch.tensor([4.0, 14.0])]], (), events, "") for _ in range(2)]
    return compare(Exercise("50", "twice", function=lambda tensor: None), right, wrong)[0].why


def test_the_number_of_ranks_is_named_only_where_ranks_communicate():
    """A factor that happens to be their number says nothing where no rank sends anything."""
    assert why([]) == "Every value is 2 times too large."
    assert why(["an all-reduce"]) == "Every value is 2 times too large, and there are 2 ranks."


def test_a_number_that_no_float_can_hold_is_only_a_wrong_one():
    right = [Observed(2.0, (), [], "")]
    wrong = [Observed(10**400, (), [], "")]
    (outcome,) = compare(Exercise("50", "twice", function=lambda tensor: None), right, wrong)
    assert not outcome.right
