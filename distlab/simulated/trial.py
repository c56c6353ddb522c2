"""One call of a learner's function on some ranks, beside the reference, with notes of what it sent.

Runs on every rank, called by client/check.py. `enter` makes the first n ranks a world of their own, on the
simulated backend: a program there sees n ranks, and what it sends is noted and can be counted.
"""

import contextlib
import inspect
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distlab.checking import Exercise, Seen, outcome
from distlab.compat.torch import GROUP_NAMES, destroy_group, forget_group_numbers
from distlab.rank.log import LOG
from distlab.simulated import backend, notes
from distlab.simulated.events import Event
from distlab.wire.payload import lend_names

MOST_PRINTED = 160  # characters of what a function prints that are shown
ANOTHER_ORDER = "These are the right values in the wrong order."
MOST_VALUES = 12  # of a tensor or list that are shown


@dataclass(frozen=True)
class Outcome:
    """The outcome of one call on one rank.

    Attributes:
        right: whether the answer did what the reference did.
        given: the arguments, in words.
        expected: one value as the reference left it, in words: the first that is wrong, if one is.
        actual: the same value as the answer left it.
        why: what is wrong, if that can be said in general; else "".
        size: of the first tensor among the arguments: elements, and bytes of each.
        events: what the answer sent and received.
        printed: the beginning of what it printed.
    """

    right: bool
    given: str
    expected: str
    actual: str
    why: str
    size: tuple[int, int]
    events: list[Event]
    printed: str


def enter(rank: int, world_size: int, n: int) -> None:
    """Make the first `n` ranks a world of their own. Runs on: every rank of the cluster."""
    backend.register()
    group = dist.new_group(range(n), backend=backend.NAME)
    if rank < n:
        group.outer = dist.group.WORLD
        dist.group.WORLD = group


def leave(rank: int, world_size: int) -> bool:
    """Go back to the whole world. Runs on: every rank of the small world.

    Groups that were made in the small world go with it, and their numbers: the ranks outside have made none.

    Returns:
        whether this rank is there; else the small world was destroyed, or replaced, and the whole one with it.
    """
    group = dist.group.WORLD
    if not hasattr(group, "outer"):
        return False
    groups, number = list(GROUP_NAMES), int(GROUP_NAMES[group])
    dist.group.WORLD = group.outer
    for own in groups[groups.index(group) :]:
        LOG.forget_group(GROUP_NAMES.get(own, ""))
        destroy_group(own)
    for name in list(LOG.met):  # of those that the answer has destroyed itself
        if name.isdigit() and int(name) >= number:
            LOG.forget_group(name)
    forget_group_numbers(number + 1)
    return True


@torch.random.fork_rng(devices=[])  # the lesson's random numbers continue as if nothing had been tried
def call(rank: int, world_size: int, exercise: Exercise, case: Any, fn: Callable[..., Any]) -> Outcome:
    """Call a learner's function, and the reference, on the inputs of a case. Runs on: every rank of the small world."""
    n = dist.get_world_size()
    expected, _ = _tried(exercise, exercise.function, exercise.given(rank, n, case))
    before, given = exercise.given(rank, n, case), exercise.given(rank, n, case)
    lend_names(fn, rank=rank, world_size=n)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        actual, events = _tried(exercise, fn, given)
    pairs = list(_pairs(expected, actual)) or [((), None, None)]
    path, wanted, found = next((pair for pair in pairs if not _alike(*pair[1:])), pairs[0])
    size = next(((t.numel(), t.element_size()) for t in before if isinstance(t, Tensor)), (0, 0))
    right, text = _alike(wanted, found), " ".join(printed.getvalue()[: 10 * MOST_PRINTED].split())[:MOST_PRINTED]
    where = "" if right else _where(exercise, path, wanted, before, expected)
    why = where if right or where.endswith("change.") else f"{where} {_why(wanted, found, before, n)}".strip()
    return Outcome(right, _words(before), _words(wanted), _words(found), why, size, events, text)


def _tried(exercise: Exercise, fn: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Any, list[Event]]:
    """What a trial of a function returns, and what this rank sent meanwhile; a trial with `events` may look at it."""
    with notes.apart() as program:
        more = {"events": program.events} if "events" in inspect.signature(exercise.trial).parameters else {}
        return exercise.trial(fn, *given, **more), program.events


def _pairs(expected: Any, actual: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """What has to be alike, and its path: parts of sequences and dicts of equal length; None stands for anything."""
    sequences = all(isinstance(value, (list, tuple)) for value in (expected, actual)) and len(expected) == len(actual)
    dicts = isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys()
    if sequences and all(isinstance(part, (int, float, str)) for part in expected):
        yield path, list(expected), list(actual)
    elif sequences or dicts:
        for key in expected if dicts else range(len(expected)):
            yield from _pairs(expected[key], actual[key], (*path, key))
    elif expected is not None:
        yield path, expected, actual


def _where(exercise: Exercise, path: tuple[Any, ...], wanted: Any, given: tuple[Any, ...], expected: Any) -> str:
    """Which part of a result, or which argument afterwards, is wrong; "" if that is obvious."""
    if exercise.trial is not outcome or len(path) < 2:
        return ""
    is_argument, first, *rest = path
    keys = "".join(f"[{key!r}]" for key in (rest if is_argument else (first, *rest)))
    if not is_argument:
        return f"This is {keys} of what is returned."
    name = f"`{list(inspect.signature(exercise.function).parameters)[first]}{keys}`"
    if expected[0] is not None and not rest and _alike(wanted, given[first]):
        return f"{name} must not change."
    return f"This is {name} afterwards." if rest else ""


def _alike(expected: Any, actual: Any) -> bool:
    """Whether two values are equal, except for rounding."""
    if isinstance(expected, Tensor):
        same = isinstance(actual, Tensor) and actual.shape == expected.shape and actual.dtype == expected.dtype
        if not same or not expected.is_floating_point():
            return same and torch.equal(expected, actual)
        digits = 1e-2 if expected.element_size() < 4 else 1e-5
        return torch.allclose(actual.double(), expected.double(), rtol=digits, atol=digits, equal_nan=True)
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return all(map(_alike, expected, actual))
    if isinstance(expected, float) and isinstance(actual, (int, float)):
        return math.isclose(expected, actual, rel_tol=1e-5, abs_tol=1e-8)
    return bool(expected == actual) if not isinstance(actual, Tensor) else False


def _why(expected: Any, actual: Any, given: tuple[Any, ...], n: int) -> str:
    """What is wrong with a value, in a sentence that is true in any exercise; "" if there is none."""
    if isinstance(actual, Seen):
        return actual.why
    if actual is None:
        return "Nothing is returned: is a `return` missing? (`dist.all_reduce` and the like return nothing themselves.)"
    if isinstance(expected, Tensor) and isinstance(actual, Tensor):
        return _why_tensor(expected, actual, given, n)
    if isinstance(expected, list) and isinstance(actual, list):
        if len(actual) != len(expected):
            return f"Its length should be {len(expected)}, not {len(actual)}."
        if any(isinstance(part, Tensor) for part in actual):
            return "It should hold numbers, not tensors: `item()` turns a tensor into a number."
        return ANOTHER_ORDER if sorted(map(repr, expected)) == sorted(map(repr, actual)) else ""
    if type(actual) is type(expected) or (isinstance(actual, (int, float)) and not isinstance(expected, Tensor)):
        return ""
    return f"Its type should be {type(expected).__name__}, not {type(actual).__name__}."


def _why_tensor(expected: Tensor, actual: Tensor, given: tuple[Any, ...], n: int) -> str:
    if actual.shape != expected.shape:
        return f"The shape should be {tuple(expected.shape)}, not {tuple(actual.shape)}."
    if actual.dtype != expected.dtype:
        return f"The dtype should be {expected.dtype}, not {actual.dtype}.".replace("torch.", "")
    parts = [part for one in given for part in (one.values() if isinstance(one, dict) else [one])]
    if any(isinstance(part, Tensor) and _alike(part, actual) for part in parts):
        return "The tensor is unchanged: the result has to be written into it."
    if bool(actual.isfinite().all() < expected.isfinite().all()):
        return "Some values are infinite or NaN: is one too large for its dtype, or divided by 0?"
    for factor in range(2, 17):
        also = f", and there are {n} ranks" if factor == n else ""
        if _alike(expected * factor, actual):
            return f"Every value is {factor} times too large{also}."
        if expected.is_floating_point() and _alike(expected, actual * factor):
            return f"Every value is {factor} times too small{also}."
    if not expected.is_complex() and _alike(*(part.flatten().sort().values for part in (expected, actual))):
        return ANOTHER_ORDER
    wrong = (expected != actual).flatten().nonzero().flatten().tolist()
    if len(wrong) == expected.numel():
        return ""
    return f"{len(wrong)} of {expected.numel()} values are wrong, the first at index {wrong[0]}."


def _words(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, Tensor):
        shown = _words(value.flatten()[: MOST_VALUES + 1].tolist() if value.ndim else value.item())
        return shown if value.ndim < 2 else f"{tuple(value.shape)}: {shown}"
    if isinstance(value, tuple) and len(value) < 2:
        return "".join(map(_words, value))
    if isinstance(value, (list, tuple)):
        more = ["..."] if len(value) > MOST_VALUES else []
        return f"[{', '.join([*map(_words, value[:MOST_VALUES]), *more])}]"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value) if isinstance(value, Seen) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
