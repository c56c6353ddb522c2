"""Errors for arguments: the form of each."""

import pytest

from distlab import arguments
from distlab.errors import ArgumentError, ArgumentTypeError


def test_arguments_that_are_wrong_together_get_a_sentence_of_their_own():
    sentence = "The network has 6 ranks, the cluster 8."
    with pytest.raises(ArgumentError) as refused:
        arguments.wrong(sentence)
    assert str(refused.value) == sentence
    assert not isinstance(refused.value, ArgumentTypeError)


@pytest.mark.parametrize("text", ["5us", "5 \u00b5s", "5 \u03bcs", "0.005 ms", "5e-6 s", "5000 ns"])
def test_a_time_may_have_any_prefix(text):
    """The micro sign of a keyboard is another character than the Greek letter."""
    assert arguments.quantity("latency", text, arguments.SECONDS, "5 us") == 5e-6
