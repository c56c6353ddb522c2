"""Whether an answer is right, and the words of its verdict, from what its calls did on the ranks.

Runs on the process that judges: the notebook's kernel, called by check.py, or a marking process,
where another process calls the answer. Both give a `World`, which makes the calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from distlab.checking.comparing import Outcome, compared
from distlab.checking.exercises import Exercise, Limits, numbers
from distlab.checking.observed import Observed
from distlab.errors import DeadlockError, RanksFailed, RankTimeout
from distlab.simulated.events import Collective
from distlab.simulated.network import Network
from distlab.simulated.simulation import simulate
from distlab.tables import Table, count, format_bytes, format_seconds
from distlab.traces import virtual
from distlab.traces.trace import Trace
from distlab.words import grouped, rank_list

AFTERWARDS = ("Freed after", "The process group is rebuilt", "The next cell starts", "Run it again")
LAN = Network("5 us", "100 Gb/s")  # on which a right answer is drawn and timed
# where only messages that follow each other take time
A_STEP_A_SECOND = Network(latency=1.0, bandwidth=1e30)
# what the reference did, and what the answer did, by rank
Pair = tuple[list[Observed], list[Observed]]
World = Callable[[int], AbstractContextManager[Callable[[Any], Pair]]]


class AnswerFailed(Exception):
    """A call of the answer did not end well.

    Attributes:
        kind: the name of the error that a notebook would show.
        message: its message.
        stuck: whether ranks waited for each other, or did not come back.
    """

    def __init__(self, kind: str, message: str, stuck: bool):
        super().__init__(kind, message, stuck)
        self.kind, self.message, self.stuck = kind, message, stuck


def failed(error: RanksFailed) -> AnswerFailed:
    """What a cluster raised, as a verdict has it."""
    stuck = isinstance(error, (DeadlockError, RankTimeout))
    return AnswerFailed(type(error).__name__, str(error), stuck)


class _WrongInRace(Exception):
    """With the large input of its race the answer is wrong; says how."""


@dataclass(frozen=True)
class Judgement:
    """What was found.

    Attributes:
        passed: whether the answer is right.
        words: what is wrong, or what a right answer did.
        run: a right answer made of messages, in its largest world on a simulated network.
    """

    passed: bool
    words: str
    run: Trace | None = None


@dataclass(frozen=True)
class Elsewhere:
    """An answer that another process calls, for `distlab.check`: the world in which its calls are
    made.
    """

    world: World


def judged(exercise: Exercise, world: World) -> Judgement:
    """Try an answer in one world after the other, until it fails.

    Args:
        world: world(n) is a context in which call(case) calls the reference and the answer on n
            ranks; it may raise AnswerFailed.
    """
    run, race = None, ""
    for n in exercise.worlds:
        with world(n) as call:
            for case in exercise.cases:
                where = _case_words(n, case, exercise)
                try:
                    expected, actual = call(case)
                except AnswerFailed as error:
                    return Judgement(False, _raised(where, error, n, exercise))
                if words := _wrong(where, compared(exercise, expected, actual), exercise):
                    return Judgement(False, words)
            if n == max(exercise.worlds) and (exercise.forbids or exercise.race):
                try:
                    run, race = _own_run(exercise, call, actual)
                except AnswerFailed as error:
                    return Judgement(False, _raised(where, error, n, exercise))
                except _WrongInRace as error:
                    return Judgement(False, str(error))
    *first, last = exercise.worlds
    worlds = f"{', '.join(map(str, first))} and {last} ranks" if first else f"{last} ranks"
    cases = count(len(exercise.cases) * len(exercise.worlds), "case")
    return Judgement(True, f"{cases}{'' if last == 1 else f' with {worlds}'}.{race}", run)


def _own_run(
    exercise: Exercise, call: Callable[[Any], Pair], observed: list[Observed]
) -> tuple[Trace | None, str]:
    """The answer on virtual machines, with the input of the race or of its last case; in a race the
    times, in words.
    """
    ranks = range(len(observed))
    race, words, size = exercise.race, "", 0
    if race:
        others, observed = call(race.case)
        outcomes = compared(exercise, others, observed)
        size = math.prod(outcomes[0].size)
        if wrong := _wrong(_case_words(len(ranks), race.case, exercise), outcomes, exercise):
            raise _WrongInRace(wrong)
    run = Trace(ranks, f"simulated: {count(len(ranks), 'rank')}, {LAN}")
    run.finish(virtual.read(simulate([one.events for one in observed], LAN), ranks), {})
    if race:
        library = max(simulate([one.events for one in others], LAN).clocks)
        times = (
            format_seconds(one).strip() for one in (run.seconds, race.ours, library, race.target)
        )
        met = "met" if run.seconds < race.target else "not met yet"
        words = "\n{} on a simulated network ({}): yours {}, ours {}, the simulated library's {}."
        words += "\nThe target, less than {}, is {}."
        words = words.format(format_bytes(size), LAN, *times, met)
    return (run if run.messages else None), words


def _case_words(n: int, case: Any, exercise: Exercise) -> str:
    """Which case it is: "3 ranks and 7 numbers of float32"."""
    if exercise.given is not numbers:
        return "these arguments" if exercise.worlds == (1,) else count(n, "rank")
    (tensor,) = numbers(0, n, case)
    return f"{count(n, 'rank')} and {count(len(tensor), 'number')} of {str(tensor.dtype).removeprefix('torch.')}"


def _wrong(where: str, outcomes: Sequence[Outcome], exercise: Exercise) -> str:
    """What is wrong with what the ranks did in the case that `where` describes; "" for nothing."""
    if not all(one.right for one in outcomes):
        return _wrong_values(where, outcomes, of_ranks=exercise.worlds != (1,))
    called = {
        event.name for one in outcomes for event in one.events if isinstance(event, Collective)
    }
    if found := [f"dist.{name}" for name in exercise.forbids if name in called]:
        return f"The values are right, but it calls {' and '.join(found)}, which this exercise rules out."
    limits = (
        exercise.limits(len(outcomes), *outcomes[0].size)
        if callable(exercise.limits)
        else exercise.limits
    )
    words = _too_much(outcomes, limits) if limits else ""
    return words and " ".join(
        [f"The values are right, but with {where}, {words}.", *exercise.texts("Limit")]
    )


def _wrong_values(where: str, outcomes: Sequence[Outcome], of_ranks: bool) -> str:
    """A grid of what the ranks should have and what they have, and what that suggests; a formula is
    of no rank.
    """
    rows = [("", "given", "expected", "yours", "")]
    for rank, one in enumerate(outcomes):
        name = f"rank {rank}" if of_ranks else ""
        rows.append((name, one.given, one.expected, one.actual, "" if one.right else "wrong"))
    if not any(one.given for one in outcomes):
        rows = [(rank, *rest) for rank, _, *rest in rows]
    grid = Table("", rows[0], tuple(rows[1:]), "l" * len(rows[0]))
    reasons = grouped((one.why, rank) for rank, one in enumerate(outcomes) if one.why)
    notes = [
        f"{rank_list(ranks).capitalize()}: {why}" if of_ranks else why
        for why, ranks in reasons.items()
    ]
    yours = {rank: one.actual for rank, one in enumerate(outcomes) if not one.right}
    expected = [one.expected for one in outcomes]
    if not notes and set(yours.values()) <= set(expected):
        first = min(yours)
        notes = [f"Rank {first} has what rank {expected.index(yours[first])} should have."]
    printed = [
        f"rank {rank} printed: {one.printed}" for rank, one in enumerate(outcomes) if one.printed
    ]
    return "\n".join([f"With {where} it gives wrong values:", repr(grid), *notes, *printed])


def _raised(where: str, error: AnswerFailed, n: int, exercise: Exercise) -> str:
    """What the notebook shows for a cell that failed in this way, as if its world of `n` ranks were
    the whole cluster.

    What it says about the time after the cell is left out.
    """
    message = re.sub(rf"(, )?group of {rank_list(range(n))}(?=\))", "", error.message)
    lines = [line for line in message.splitlines() if not line.startswith(AFTERWARDS)]
    advice = exercise.texts("Stuck") if error.stuck else []
    return "\n".join([f"With {where} it ends in {error.kind}:", *lines, *advice])


def _too_much(outcomes: Sequence[Outcome], limits: Limits) -> str:
    """What a right answer does more often, or with more bytes, than it needs to; "" for nothing."""
    result = simulate([one.events for one in outcomes], A_STEP_A_SECOND)
    sent = grouped((transfer.src, transfer.num_bytes) for transfer in result.transfers)
    calls = {
        rank: sum(isinstance(event, Collective) for event in one.events)
        for rank, one in enumerate(outcomes)
    }
    for words, by_rank, most, form in (
        (
            "sends {}",
            {rank: sum(sizes) for rank, sizes in sent.items()},
            limits.num_bytes,
            format_bytes,
        ),
        (
            "sends {} messages",
            {rank: len(sizes) for rank, sizes in sent.items()},
            limits.messages,
            str,
        ),
        (
            "sends a message of {}",
            {rank: max(sizes) for rank, sizes in sent.items()},
            limits.largest,
            format_bytes,
        ),
        ("calls {} collectives", calls, limits.calls, str),
    ):
        rank = max(by_rank, key=by_rank.get, default=None)
        if most is not None and rank is not None and by_rank[rank] > most:
            return f"rank {rank} {words.format(form(by_rank[rank]))} where {form(most)} would do"
    steps = round(max(result.clocks))
    if limits.steps is not None and steps > limits.steps:
        return f"{steps} messages follow each other where {limits.steps} would do"
    return ""
