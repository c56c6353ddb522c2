"""One call of a learner's function on some ranks, or of the reference, with notes of what it sent.

Runs on every rank, called by check.py and by a marking process. `enter_world` makes the first n
ranks a world of their own, on the simulated backend: a program there sees n ranks, and what it
sends is noted and can be counted. Nothing is compared here: what a call did goes back as bytes
(packing.py), and judging.py compares.
"""

import contextlib
import inspect
import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from distlab.checking import tampering
from distlab.checking.exercises import Exercise, gathered
from distlab.checking.packing import Packed, packed, to_bytes
from distlab.compat.torch import GROUP_NAMES, destroy_group, number_next_group
from distlab.rank.log import LOG
from distlab.simulated import backend, notes
from distlab.simulated.events import NotedEvent
from distlab.wire.namespace import bind_rank_globals

MOST_PRINTED_CHARACTERS = 160  # characters of what a function prints that are shown


def enter_world(rank: int, world_size: int, n: int) -> None:
    """Make the first `n` ranks a world of their own. Runs on: every rank of the cluster."""
    backend.register()
    group: Any = dist.new_group(range(n), backend=backend.SIMULATED)
    if rank < n:
        group.outer = dist.group.WORLD
        dist.group.WORLD = group


def leave_world(rank: int, world_size: int) -> bool:
    """Go back to the whole world. Runs on: every rank of the small world.

    Groups that were made in the small world go with it, and their numbers: the ranks outside have
    made none.

    Returns:
        whether this rank is there; else the small world was destroyed, or replaced, and the whole
        one with it.
    """
    group: Any = dist.group.WORLD
    if not hasattr(group, "outer"):
        return False
    groups = list(GROUP_NAMES)
    number = int(GROUP_NAMES[group])
    dist.group.WORLD = group.outer
    for own in groups[groups.index(group) :]:
        LOG.forget_group(GROUP_NAMES.get(own, ""))
        destroy_group(own)
    for name in list(LOG.meetings):  # of those that the answer has destroyed itself
        if name.isdigit() and int(name) >= number:
            LOG.forget_group(name)
    number_next_group(number + 1)
    return True


def join_as_many_groups() -> None:
    """Make groups of one rank, until every rank is in equally many groups.

    A trial calls it before an answer makes groups with `use_local_synchronization=True`: torch
    names such a group by its members and by how many groups a rank is in.

    Runs on: every rank of the small world.
    """
    counts = gathered(len(GROUP_NAMES))
    rank = dist.get_rank()
    for _ in range(max(counts) - counts[rank]):
        dist.new_group([rank], use_local_synchronization=True)


# the lesson's random numbers continue as if nothing had been tried
@torch.random.fork_rng(devices=[])
def call_with_case(
    rank: int,
    world_size: int,
    exercise: Exercise,
    case: Any,
    reference: bool,
    fn: Callable[..., Any] | None,
) -> list[bytes]:
    """Call the reference, a learner's function, or both, on the inputs of a case.

    Runs on: every rank of the small world.

    Args:
        rank, world_size: in the cluster.
        exercise: whose case it is.
        case: what its `given` makes inputs of.
        reference: whether to call it; first, as a learner's function may change what it finds.
        fn: None for no call of a learner's function.

    Returns:
        what each call did, see observed.py.
    """
    n = dist.get_world_size()
    found = []
    if reference:
        given = exercise.given(rank, n, case)
        before = packed(given)
        found.append(_observed(exercise, exercise.function, given, before))
    if fn is not None:
        bind_rank_globals(fn, rank=rank, world_size=n)
        given = exercise.given(rank, n, case)
        found.append(_observed(exercise, fn, given, packed(())))
    return found


def _observed(
    exercise: Exercise, fn: Callable[..., Any], given: tuple[Any, ...], before: Packed
) -> bytes:
    """What a function did with arguments, in bytes.

    Args:
        exercise: how it is called.
        fn: the function.
        given: its arguments.
        before: what they are before the call; () for an answer, whose verdict has them from the
            reference.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value, events = _tried(exercise, fn, given)
    # it may be of any length, and mostly white space
    beginning = printed.getvalue()[: 10 * MOST_PRINTED_CHARACTERS]
    text = " ".join(beginning.split())[:MOST_PRINTED_CHARACTERS]
    return to_bytes(value, before, events, text, tampering.changed_function())


def _tried(
    exercise: Exercise, fn: Callable[..., Any], given: tuple[Any, ...]
) -> tuple[Any, list[NotedEvent]]:
    """What a trial of a function returns, and what this rank sent meanwhile."""
    takes_events = "events" in inspect.signature(exercise.trial).parameters
    with notes.isolated() as program:
        if takes_events:
            value = exercise.trial(fn, *given, events=program.events)
        else:
            value = exercise.trial(fn, *given)
    return value, program.events
