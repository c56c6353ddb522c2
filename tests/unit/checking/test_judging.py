"""The words of a verdict, from calls that are written by hand."""

import contextlib

import torch

from distlab.checking import Exercise, Race
from distlab.checking.judging import AnswerFailed, judge
from distlab.checking.observed import Observed


def in_a_world(call):
    """A world of any size, in which `call` tries the cases."""
    return lambda n: contextlib.nullcontext(call)


def fails_with_much(case):
    """An answer that is right with a few numbers."""
    if case > 1000:
        raise AnswerFailed("RankTimeout", "rank 0 did not come back within 10 s.", False)
    given = (torch.ones(case),)
    done = [Observed((None, given), given, [], "")] * 2
    return done, done


def test_a_race_that_fails_is_named_by_its_own_case():
    """A learner who repeats it with the named size finds the fault."""
    race = Race(5000, 1.0, 1.0)
    exercise = Exercise("50", worlds=(2,), cases=(3,), race=race, function=lambda tensor: None)
    verdict = judge(exercise, in_a_world(fails_with_much))
    first, *_ = verdict.words.splitlines()
    assert first == "With 2 ranks and 5,000 numbers of float32 it ends in RankTimeout:"
