"""What `compare` refuses before anything runs."""

import pytest

import distlab
from tests.refused import refused

WORLDS = "worlds must be two or more different numbers of ranks"
AFTER = "Call distlab.compare(train, (1, 4)). Arguments of train follow after the worlds."


def train(rank, world_size):
    """Never called."""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (4, f"{WORLDS}, got 4. {AFTER}"),
        ("sgd", f"{WORLDS}, got 'sgd'. {AFTER}"),
        ((4,), f"{WORLDS}, got (4,). {AFTER}"),
        ((1, 4, 4), f"{WORLDS}, got (1, 4, 4). {AFTER}"),
        ((0, 4), f"worlds must be a whole number of 1 or more, got 0. {AFTER}"),
        ((1, 0.5), f"worlds must be a whole number of 1 or more, got 0.5. {AFTER}"),
    ],
)
def test_worlds_are_different_numbers_of_ranks(given, words):
    assert str(refused(distlab.compare, train, given)) == words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed must be a whole number from 0 to 2147483648, got -1. "),
        ({"timeout": 0}, "timeout must be above 0, got 0. For example: timeout=5."),
    ],
)
def test_options_have_rules(options, words):
    assert str(refused(distlab.compare, train, **options)).startswith(words)


def test_a_program_is_a_function():
    """The call of it, which has run already, is none."""
    words = "train must be a function, got None. Call distlab.compare(train, (1, 4))."
    assert str(refused(distlab.compare, None)) == words
