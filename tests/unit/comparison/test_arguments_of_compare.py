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
        ((0, 4), f"each of worlds must be a whole number of 1 or more, got 0. {AFTER}"),
        ((1, 0.5), f"each of worlds must be a whole number of 1 or more, got 0.5. {AFTER}"),
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


async def trains_later(rank, world_size):
    """Does nothing when it is called."""


def trains_bit_by_bit(rank, world_size):
    yield rank


@pytest.mark.parametrize("program", [trains_later, trains_bit_by_bit])
def test_a_program_has_done_its_work_when_it_returns(program):
    words = "train must be an ordinary function, which has done its work when it returns, got "
    assert str(refused(distlab.compare, program)).startswith(words)


@pytest.mark.parametrize(
    ("program", "args", "kwargs", "words"),
    [
        (
            train,
            (),
            {"world": (1, 4)},
            "train is called as train(rank, world_size, world=(1, 4)), and takes (rank, "
            "world_size): got an unexpected keyword argument 'world'. Did you mean worlds=?",
        ),
        (
            train,
            ((1, 4), 5),
            {},
            "train is called as train(rank, world_size, 5), and takes (rank, world_size): too many "
            "positional arguments. Its first two parameters are the rank and the number of ranks.",
        ),
        (
            lambda: None,
            (),
            {},
            "train is called as train(rank, world_size), and takes (): too many positional "
            "arguments. Its first two parameters are the rank and the number of ranks.",
        ),
    ],
)
def test_a_program_takes_its_arguments(program, args, kwargs, words):
    """Before a cluster is started for it."""
    assert str(refused(distlab.compare, program, *args, **kwargs)) == words
