"""What is recorded for a prediction: arguments that cannot be used are refused before it runs."""

import math

import pytest

from distlab_predict.runs import run_of
from tests.refused import refused


@pytest.mark.parametrize(
    ("skew", "compiled", "words"),
    [
        (math.inf, False, "skew must be a number of at least 1, got inf."),
        (math.nan, False, "skew must be a number of at least 1, got nan."),
        (0.9, False, "skew must be a number of at least 1, got 0.9."),
        (1.5, "yes", "compiled must be one of True, False, 'by hand', got 'yes'."),
    ],
)
def test_what_is_assumed_of_experts_and_kernels(skew, compiled, words):
    assert words in str(refused(run_of, print, 8, None, skew, compiled))
