"""Small exercises for the tests of marking, many of each kind: a notebook answers each once.

The test installs this file as a package of its own, so that judges and ranks find it.
"""

import torch.distributed as dist

from distlab.checking import (
    COLLECTIVES,
    Exercise,
    Question,
    Race,
    as_they_are,
    exercise,
    on_rank,
    returned,
)

KINDS = {}


def several(kind):
    """A decorator: exercises NAME_0 to NAME_39, whose reference is the function."""

    def register(function):
        for number in range(40):

            def same(*arguments, function=function):
                return function(*arguments)

            same.__name__ = f"{function.__name__}_{number}"
            same.__doc__ = function.__doc__
            kind(same)
        KINDS[function.__name__] = kind
        return function

    return register


@several(exercise("marked", worlds=(2,), cases=((7,),), given=as_they_are))
def plain(number):
    """Return ten times the number, and the rank."""
    return 10 * number + dist.get_rank()


@several(exercise("marked", worlds=(2,), cases=(8, 3)))
def total(tensor):
    """Replace the tensor by its sum over all ranks."""
    dist.all_reduce(tensor)


@several(
    Exercise(
        "marked",
        worlds=(2,),
        cases=(8,),
        forbids=COLLECTIVES,
        race=Race(1000, ours=1e-4, target=1.0),
        trial=returned,
    )
)
def passed_on(tensor):
    """Return on rank 1 the tensor of rank 0, by a message; the others return nothing."""
    everyone = [None, None]
    dist.all_gather_object(everyone, tensor)
    return on_rank(1, everyone[0])


@several(Question("marked", 42))
def value(answer):
    """What is six times seven?"""
