"""What an exercise is: what it asks for, how an answer is tried, and what the right one does.

Runs anywhere. An exercise is a reference: a function with the signature of the answer, under
`@exercise`:

    from distlab.checking import COLLECTIVES, Limits, exercise

    @exercise("03", forbids=COLLECTIVES, limits=lambda n, *_: Limits(messages=2 * (n - 1)))
    def ring_all_reduce(tensor):
        '''Replace the numbers of `tensor`, on every rank, by their sums over all ranks.

        Hint: Cut the tensor with `tensor.tensor_split(world_size)`.
        '''
        dist.all_reduce(tensor)

The reference runs with the same inputs as the answer, on the same ranks; it may use what the answer
must not. A `@question` asks for a value, which is judged in the notebook's kernel. All that a
learner reads is in the docstring:

    the statement      its first paragraphs
    Title:             its number and title on the page, "2.1 In place"
    Hint:              one of the hints, which come in stages
    Limit:             a question that leads to the cause when an answer breaks the limits
    Stuck:             a question that leads to the cause when ranks wait for each other forever
    Not 1.5:           what to say about this wrong value, a Python literal
    Otherwise:         what to say about any other wrong value
    Why:               why the right value is right; shown once it is found

The decorators register what they define by name, so that `distlab.check("ring_all_reduce", fn)`
finds it, and `name_labs` gives notebooks titles. A package lists its modules of exercises as entry
points in the group "distlab.exercises"; they are imported when needed.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from distlab.arguments import refuse
from distlab.compat.torch import flight_record

# by the names that distlab gives them, the forms for one tensor included
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
# of paragraphs in a docstring, which need no empty line between them
PARAGRAPH_KINDS = "(?:Title|Hint|Limit|Stuck|Not [^:]+|Otherwise|Why)"
PARAGRAPH_BEGINS = re.compile(rf"({PARAGRAPH_KINDS}): ")
BETWEEN_PARAGRAPHS = re.compile(rf"\n\s*\n|\n(?=\s*{PARAGRAPH_KINDS}:)")
TOLERANCE = 0.01  # within which a float is the answer to a question
# exercises and questions by name, in the order of their definition
_REGISTERED: dict[str, Exercise | Question] = {}
_LABS: dict[str, str] = {}  # titles by notebook


def nothing(rank: int, world_size: int, case: Any) -> tuple[()]:
    """Inputs: no arguments."""
    return ()


def as_they_are(rank: int, world_size: int, case: Any) -> tuple[Any, ...]:
    """Inputs: the case is the tuple of arguments, the same on every rank."""
    return case


def numbers(rank: int, world_size: int, case: Any) -> tuple[torch.Tensor]:
    """Inputs: a tensor of small whole numbers, different on each rank.

    `case` is its length, or (length, dtype).
    """
    if isinstance(case, tuple):
        length, dtype = case
    else:
        length = case
        dtype = torch.float32
    tensor = (torch.arange(length) * 7 + rank * 3) % 10 + 1
    return (tensor.to(dtype),)


def returned_and_arguments(fn: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """A trial that compares what a function returns and what its arguments hold afterwards."""
    return fn(*arguments), arguments


def returned(fn: Callable[..., Any], *arguments: Any) -> Any:
    """A trial that compares only what a function returns, not its arguments."""
    return fn(*arguments)


@dataclass(frozen=True)
class Limits:
    """The most that a rank may do in one call of the answer; None for no limit.

    Attributes:
        num_bytes: bytes that a rank sends, in collectives too.
        messages: messages that a rank sends.
        steps: messages in a chain, each of which waits for the one before.
        calls: collectives that a rank calls.
        largest: bytes of the largest message.
    """

    num_bytes: int | None = None
    messages: int | None = None
    steps: int | None = None
    calls: int | None = None
    largest: int | None = None


@dataclass(frozen=True)
class Race:
    """How a right answer is timed, in its largest world on `distlab.checking.judging.LAN`.

    Attributes:
        case: what `given` makes inputs of, large ones.
        ours: seconds that our own answer takes.
        target: seconds that are good.
    """

    case: Any
    ours: float
    target: float


def _not_given(*arguments: Any) -> Any:
    """The function of an exercise that has not decorated one."""
    raise TypeError("This exercise has no function: use it as a decorator of one.")


class _WithTexts:
    """What the docstring of an exercise's function says; see above."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    @property
    def title(self) -> str:
        """Its number and title, as they stand above it on the page; its name if it has none."""
        titles = self.texts("Title")
        if titles:
            return titles[0]
        return self.name

    def texts(self, kind: str) -> list[str]:
        """The paragraphs of a kind; "" for the statement."""
        return [text for found, text in self.paragraphs() if found == kind]

    def paragraphs(self) -> list[tuple[str, str]]:
        """(kind, text) of each: ("Hint", "Cut the tensor ...")."""
        docstring = self.function.__doc__ or ""
        found = []
        for part in BETWEEN_PARAGRAPHS.split(docstring):
            words = " ".join(part.split())
            begins = PARAGRAPH_BEGINS.match(words)
            if begins is not None:
                found.append((begins[1], words[begins.end() :]))
            elif words:
                found.append(("", words))
        return found


@dataclass(frozen=True)
class Exercise(_WithTexts):
    """A function to write; used as a decorator of its reference.

    Attributes:
        notebook: its number, or the name of a course.
        worlds: the numbers of ranks on which it is tried, in ascending order.
        cases: what `given` makes inputs from, from small to large.
        given: given(rank, world_size, case) returns the arguments of the function on this rank, a
            tuple.
        trial: trial(fn, *arguments) calls the function, the answer or the reference, and returns
            what is compared. What is None on every rank matches anything; what is None on some
            ranks has to be None there. If it has a parameter `events`, it gets the list that
            collects what this rank sends.
        forbids: names of collectives that the answer must not call.
        race: how a right answer is timed; None for no race.
        limits: the same for all, or limits(world_size, length, item), where the first tensor has
            `length` elements of `item` bytes; None for no limits.
        seconds: after which a call counts as stuck.
        function: the reference, a right answer.

    Raises:
        ArgumentError: there is no world, or no case.
    """

    notebook: str
    worlds: tuple[int, ...] = (1, 2, 3, 4)
    cases: tuple[Any, ...] = (8, 7, 3, (12, torch.int64), (10, torch.float64))
    given: Callable[[int, int, Any], tuple[Any, ...]] = numbers
    trial: Callable[..., Any] = returned_and_arguments
    forbids: list[str] = field(default_factory=list)
    limits: Limits | Callable[[int, int, int], Limits] | None = None
    race: Race | None = None
    seconds: float = 10.0
    function: Callable[..., Any] = _not_given

    def __post_init__(self) -> None:
        if not self.worlds:
            refuse("worlds", "one number of ranks or more", self.worlds, "For example: (1, 2).")
        if not self.cases:
            refuse("cases", "one case or more", self.cases, "For example: (8, 3).")

    def __call__(self, function: Callable[..., Any]) -> Exercise:
        """As a decorator of the reference, define the exercise."""
        return _register(replace(self, function=function))


@dataclass(frozen=True)
class Question(_WithTexts):
    """A value to find.

    Used as a decorator of a function that judges values, or has only a docstring.

    Attributes:
        notebook: its number, or the name of a course.
        right: the value: an int, a float within 1 %, a text, or a list of these; None if the
            function alone judges.
        function: called with a value that is not `right`; it returns True, False or None, or what
            is wrong with the value.
    """

    notebook: str
    right: Any = None
    function: Callable[[Any], bool | str | None] = _not_given

    def __call__(self, function: Callable[[Any], bool | str | None]) -> Question:
        """As a decorator of the function, define the question."""
        return _register(replace(self, function=function))

    def judge(self, value: Any) -> Literal[True] | str:
        """True if the value is right, else what is wrong with it."""
        if self.right is not None and _matches(value, self.right):
            return True
        known = self._known_mistakes(value)
        # asked even where the mistake is known: what it raises for a value goes before any words
        found = self.function(value)
        if known:
            return known[0]
        if found:
            # it is words, or a truth, which may be one of numpy's or torch's
            return found if isinstance(found, str) else True
        otherwise = self.texts("Otherwise")
        return otherwise[0] if otherwise else f"{value!r} is not the answer."

    def _known_mistakes(self, value: Any) -> list[str]:
        """What the docstring says of a wrong value, in paragraphs such as `Not 1.5: ...`."""
        texts = []
        for kind, text in self.paragraphs():
            if kind.startswith("Not "):
                wrong = ast.literal_eval(kind.removeprefix("Not "))
                if _matches(value, wrong):
                    texts.append(text)
        return texts


exercise = Exercise
question = Question
_Defined = TypeVar("_Defined", Exercise, Question)


def _register(defined: _Defined) -> _Defined:
    """The exercise or question itself, which can be found by its name from now on."""
    _REGISTERED[defined.name] = defined
    return defined


def formula(
    notebook: str, *cases: tuple[Any, ...], trial: Callable[..., Any] = returned_and_arguments
) -> Exercise:
    """An exercise without messages: a function of plain values, called on one rank.

    Args:
        notebook: its number, or the name of a course.
        cases: the arguments of each call.
        trial: as for Exercise.
    """
    return Exercise(notebook, worlds=(1,), cases=cases, given=as_they_are, trial=trial)


class Seen(str):
    """What a trial saw: a few words, which are compared and shown.

    Attributes:
        why: a sentence on what is wrong with it; "" for nothing.
    """

    why: str

    def __new__(cls, words: str, why: str = "") -> Seen:
        seen = super().__new__(cls, words)
        seen.why = why
        return seen


def all_but(*names: str) -> list[str]:
    """Every collective but these: what an answer must not call when it is meant to call these."""
    return [name for name in COLLECTIVES if name not in names]


def gathered(value: Any) -> list[Any]:
    """The values of all ranks, in the order of the ranks. Runs on: every rank."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def recorded(count: int) -> list[dict[str, Any]]:
    """The newest entries of torch's flight recorder, up to `count`, for trials that read them.

    Runs on: every rank; each has its own.
    """
    return flight_record()[-count:]


def on_rank(rank: int, value: Any) -> Any:
    """A value that one rank returns; None on the others, where an answer returns nothing either."""
    return value if dist.get_rank() == rank else None


def all_exercises() -> dict[str, Exercise | Question]:
    """Every exercise and question by name: of installed packages, and of this process."""
    own = dict(_REGISTERED)  # these win over a course's of the same name
    _import_courses()
    _REGISTERED.update(own)
    return dict(_REGISTERED)


def name_labs(titles: Mapping[str, str]) -> None:
    """Give notebooks, by number, the titles that `distlab.progress()` shows without their files."""
    _LABS.update(titles)


def title_of_lab(notebook: str) -> str:
    """The title of a notebook, by its number; "" if it has none."""
    return _LABS.get(notebook, "")


@functools.cache
def _import_courses() -> None:
    """Import the exercises of installed packages.

    Only once, because looking at all that is installed takes its time.
    """
    for module in metadata.entry_points(group="distlab.exercises"):
        module.load()


def _matches(value: Any, right: Any) -> bool:
    """Whether a value is the right one.

    A float is within the tolerance, a list may be a tuple, and a tensor has these numbers.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(right, (list, tuple)):
        same_length = isinstance(value, (list, tuple)) and len(value) == len(right)
        return same_length and all(map(_matches, value, right))
    if isinstance(right, float) and isinstance(value, (int, float)):
        return math.isclose(value, right, rel_tol=TOLERANCE)
    return bool(value == right)
