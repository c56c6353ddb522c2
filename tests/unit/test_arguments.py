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
