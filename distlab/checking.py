"""The exercises of the notebooks: what each asks for, how an answer is tried, and what the right one does.

An exercise is a function with the answer's signature, its reference, under `@exercise`:

    @exercise("03", forbids=COLLECTIVES, limits=lambda n, length, item: Limits(2 * (n - 1) * ceil(length / n) * item))
    def ring_all_reduce(tensor):
        '''Replace the numbers of `tensor`, on every rank, by their sums over all ranks.

        Hint: Cut the tensor with `tensor.tensor_split(world_size)`.
        '''
        dist.all_reduce(tensor)

Its docstring is the statement and the hints. The reference runs on the same ranks as the answer, with the same inputs:
it may use whatever the answer may not. A question, under `@question`, judges a value in the notebook's kernel.

Runs anywhere; plain torch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist

ENTRY_POINTS = "distlab.exercises"  # the group of entry points by which a package offers its exercises
_REGISTERED: dict[str, Any] = {}  # by name, in the order of definition
# as the notes of a rank name them, the forms for one tensor included
COLLECTIVES = [
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
]


@dataclass(frozen=True)
class Limits:
    """The most that a rank may do in one call of the answer; None for no limit.

    Args:
        num_bytes: sent by a rank, collectives included. messages: sent by a rank. steps: messages that follow each
            other, each of which waits for the one before. calls: of collectives. largest: bytes of a message.
        because: a question that leads to the reason when it is more.
    """

    num_bytes: int | None = None
    messages: int | None = None
    steps: int | None = None
    calls: int | None = None
    largest: int | None = None
    because: str = ""


@dataclass(frozen=True)
class Exercise:
    """A function to write.

    Args:
        reference: a right answer. notebook: its number.
        worlds: numbers of ranks with which it is tried, from few to many.
        cases: what `given` makes inputs of, from small to large.
        given: given(rank, world_size, case) is a tuple, the arguments of the function on this rank.
        trial: trial(fn, *arguments) calls the function, the answer or the reference, and returns what is compared. One
            with a parameter `events` gets the list to which this rank's collectives and messages are added.
        forbids: names of collectives that the answer must not call.
        limits: limits(world_size, length, item) for a first tensor of so many elements and bytes in each; None without.
        seconds: after which one call counts as never ending.
        stuck: a question that leads to the reason when ranks wait for each other for ever.
    """

    reference: Callable[..., Any]
    notebook: str
    worlds: tuple[int, ...]
    cases: tuple[Any, ...]
    given: Callable[[int, int, Any], tuple[Any, ...]]
    trial: Callable[..., Any]
    forbids: tuple[str, ...]
    limits: Callable[[int, int, int], Limits] | None
    seconds: float
    stuck: str = ""

    name = property(lambda self: self.reference.__name__)
    statement = property(lambda self: _told(self.reference)[0])
    hints = property(lambda self: _told(self.reference)[1])


@dataclass(frozen=True)
class Question:
    """A value to find: `judge(value)` is True, False, or a sentence that says what is wrong with it.

    Its docstring ends with the reason, which is told with the verdict that the answer is right.
    """

    judge: Callable[[Any], bool | str]
    notebook: str

    name = property(lambda self: self.judge.__name__)
    statement = property(lambda self: _told(self.judge)[0])
    hints = property(lambda self: _told(self.judge)[1])
    why = property(lambda self: _told(self.judge)[2])


class Seen(str):
    """What a trial saw, in a few words that are compared and shown, and in a sentence on what is wrong with it."""

    why: str

    def __new__(cls, words: str, why: str = "") -> Seen:
        seen = super().__new__(cls, words)
        seen.why = why
        return seen


def numbers(rank: int, world_size: int, case: Any) -> tuple[torch.Tensor]:
    """A tensor of small whole numbers, other ones on each rank; `case` is its length, or (length, dtype)."""
    length, dtype = case if isinstance(case, tuple) else (case, torch.float32)
    return (((torch.arange(length) * 7 + rank * 3) % 10 + 1).to(dtype),)


def nothing(rank: int, world_size: int, case: Any) -> tuple[()]:
    """No arguments."""
    return ()


def as_they_are(rank: int, world_size: int, case: Any) -> tuple[Any, ...]:
    """The case is the tuple of arguments, the same on every rank."""
    return case


def all_but(*names: str) -> list[str]:
    """The collectives that an answer must not call where it is to call these."""
    return [name for name in COLLECTIVES if name not in names]


def gathered(value: Any) -> list[Any]:
    """The values of all ranks, in the order of the ranks. Runs on: every rank."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def outcome(fn: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """What a function returns, and what is in its arguments afterwards."""
    return fn(*arguments), arguments


def returned(fn: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, whatever becomes of its arguments."""
    return fn(*arguments)


def exercise(
    notebook: str,
    worlds: tuple[int, ...] = (1, 2, 3, 4),
    cases: tuple[Any, ...] = (8, 7, 3, (12, torch.int64), (10, torch.float64)),
    given: Callable[[int, int, Any], tuple[Any, ...]] = numbers,
    trial: Callable[..., Any] = outcome,
    forbids: tuple[str, ...] | list[str] = (),
    limits: Callable[[int, int, int], Limits] | None = None,
    seconds: float = 10.0,
    stuck: str = "",
) -> Callable[[Callable[..., Any]], Exercise]:
    """Make an exercise of its reference; see `Exercise` for the arguments."""
    rest = (notebook, worlds, cases, given, trial, tuple(forbids), limits, seconds, stuck)
    return lambda fn: _registered(Exercise(fn, *rest))


def question(notebook: str) -> Callable[[Callable[[Any], bool | str]], Question]:
    """Make a question of the function that judges its answers."""
    return lambda judge: _registered(Question(judge, notebook))


def all_exercises() -> dict[str, Exercise | Question]:
    """Every exercise and question by name: those of installed courses, and those that were defined in this process."""
    _import_courses()
    return dict(_REGISTERED)


@functools.cache
def _import_courses() -> None:
    """Import every module that an installed package names in its entry points of the group `distlab.exercises`."""
    for course in metadata.entry_points(group=ENTRY_POINTS):
        course.load()


def _registered(one: Exercise | Question) -> Any:
    _REGISTERED[one.name] = one
    return one


def _told(fn: Callable[..., Any]) -> tuple[str, tuple[str, ...], str]:
    """The statement in a docstring, its hints, and its reason; each a paragraph that begins with "Hint:" or "Why:"."""
    paragraphs = [" ".join(text.split()) for text in re.split(r"\n\s*\n|\n(?=\s*(?:Hint|Why):)", fn.__doc__ or "")]
    hints = tuple(text.removeprefix("Hint:").strip() for text in paragraphs if text.startswith("Hint:"))
    why = " ".join(text.removeprefix("Why:").strip() for text in paragraphs if text.startswith("Why:"))
    return "\n".join(text for text in paragraphs if text and not text.startswith(("Hint:", "Why:"))), hints, why
