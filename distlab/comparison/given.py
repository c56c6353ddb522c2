"""Rules for the program that a person gives to a comparison.

Runs anywhere, called by compare.py, and on ranks by in_test.py.
"""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from distlab.arguments import refuse, wrong

OPTIONS = ("worlds", "seed", "timeout")  # of `compare`, whose names may be misspelled
EXAMPLE = "Call distlab.compare(train, (1, 4))."


def check_program(train: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse what is no ordinary function, or does not take these arguments.

    Raises:
        ArgumentError: before anything runs.
    """
    if not callable(train):
        refuse("train", "a function", train, EXAMPLE, wrong_type=True)
    if inspect.iscoroutinefunction(train) or inspect.isgeneratorfunction(train):
        rule = "an ordinary function, which has done its work when it returns"
        refuse("train", rule, train, EXAMPLE, wrong_type=True)
    try:
        signature = inspect.signature(train)
    except ValueError:  # one of C's may have none
        return
    try:
        signature.bind(0, 1, *args, **kwargs)
    except TypeError as error:
        call = _call_words(args, kwargs)
        wrong(f"train is called as {call}, and takes {signature}: {error}. {_advice(kwargs)}")


def _call_words(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The call of the program, as a person would write it."""
    words = ["rank", "world_size"]
    words += [repr(value) for value in args]
    words += [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"train({', '.join(words)})"


def _advice(kwargs: Mapping[str, Any]) -> str:
    """What may be meant: an option of `compare`, or the two parameters that a program has."""
    for name in kwargs:
        meant = difflib.get_close_matches(name, OPTIONS, n=1)
        if meant:
            return f"Did you mean {meant[0]}=?"
    return "Its first two parameters are the rank and the number of ranks."
