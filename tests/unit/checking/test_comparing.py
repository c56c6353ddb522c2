"""What a verdict says of a wrong value, from what the reference and the answer did."""

import torch

from distlab.checking import Exercise
from distlab.checking.comparing import compare
from distlab.checking.observed import Observed
from distlab.checking.values import alike


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


def outcomes(function, right, wrong, given):
    """What is said of calls on ranks: (returned, argument) of the reference and of the answer."""
    observed = [
        [Observed([back, [argument]], (given,), [], "") for back, argument in calls]
        for calls in (right, wrong)
    ]
    return compare(Exercise("50", "lab", function=function), *observed)


def test_an_argument_that_must_not_change_is_no_result():
    """It has its name, also on a rank that returns nothing, because the reference returns a sum."""
    before = torch.tensor([1.0, 8.0])
    after = torch.tensor([5.0, 9.0])
    right = [(after, before), (None, before)]
    first, second = outcomes(lambda tensor: None, right, [(after, after), (None, after)], before)
    assert first.why == second.why == "`tensor` must not change."
    assert (first.expected, first.actual) == ("tensor = [1, 8]", "tensor = [5, 9]")


def test_a_tensor_that_is_as_it_was_given():
    """Whether it is returned, or should be written into, or neither is known."""
    before = torch.tensor([1.0, 8.0])
    after = torch.tensor([5.0, 9.0])
    (back,) = outcomes(lambda mine: None, [(after, before)], [(before, before)], before)
    assert (back.expected, back.why) == ("[5, 9]", "It returns the values that it was given.")
    (kept,) = outcomes(lambda tensor: None, [(None, after)], [(None, before)], before)
    words = "The tensor is unchanged, but the result has to be written into it."
    assert (kept.expected, kept.why) == ("[5, 9]", words)
    own = Exercise("50", "own", function=lambda tensor: None, trial=lambda fn, tensor: None)
    (other,) = compare(own, [Observed(after, (before,), [], "")], [Observed(before, (), [], "")])
    words = "These are still the values that were given. Is the result written where it is wanted?"
    assert other.why == words


def test_an_answer_that_writes_is_not_told_to_write():
    """A factor of 1 leaves rank 0's tensor as it was given, but rank 1 has other values."""
    before, after = torch.tensor([1.0, 8.0]), torch.tensor([3.0, 24.0])
    words = "The tensor is unchanged, but the result has to be written into it."

    def on_two_ranks(first, second):
        wanted = [(None, after), (None, after)]
        return outcomes(lambda tensor: None, wanted, [(None, first), (None, second)], before)

    unlucky, wrong = on_two_ranks(before, 2 * before)
    assert not unlucky.right
    assert not wrong.right
    assert unlucky.why == ""
    kept, right = on_two_ranks(before, after)
    assert right.right
    assert kept.why == words
    assert [one.why for one in on_two_ranks(before, before)] == [words, words]


def test_a_number_that_no_float_can_hold_is_only_a_wrong_one():
    right = [Observed(2.0, (), [], "")]
    wrong = [Observed(10**400, (), [], "")]
    (outcome,) = compare(Exercise("50", "twice", function=lambda tensor: None), right, wrong)
    assert not outcome.right


def test_one_wrong_number_at_the_end_of_a_long_tensor_is_seen():
    """Rounding is none, nor is what is no number in both."""
    right = torch.rand(100_000)
    right[-2] = float("nan")
    rounded = right * (1 + 1e-6)
    wrong = right.clone()
    wrong[-1] += 1
    assert alike(right, right.clone())
    assert alike(right, rounded)
    assert not alike(right, wrong)
