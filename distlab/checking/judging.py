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
from distlab.checking.exercises import Exercise, Limits, Race, numbers
from distlab.checking.observed import Observed
from distlab.errors import DeadlockError, RanksFailed, RankTimeout
from distlab.simulated.events import CollectiveCall
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
Call = Callable[[Any], Pair]  # tries a case
World = Callable[[int], AbstractContextManager[Call]]  # of so many ranks


class AnswerFailed(Exception):
    """A call of the answer did not end well.

    Attributes:
        kind: the name of the error that a notebook would show.
        message: its message.
        stuck: whether ranks waited for each other, or did not come back.
    """

    def __init__(self, kind: str, message: str, stuck: bool):
        super().__init__(kind, message, stuck)
        self.kind = kind
        self.message = message
        self.stuck = stuck


def answer_failed(error: RanksFailed) -> AnswerFailed:
    """What a cluster raised, as a verdict has it."""
    stuck = isinstance(error, (DeadlockError, RankTimeout))
    return AnswerFailed(type(error).__name__, str(error), stuck)


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
    """An answer that another process calls, for `distlab.check`.

    Attributes:
        world: where its calls are made.
    """

    world: World


def judged(exercise: Exercise, world: World) -> Judgement:
    """Try an answer in one world after the other, until it fails.

    Args:
        world: world(n) is a context in which call(case) calls the reference and the answer on n
            ranks; it may raise AnswerFailed.
    """
    run = None
    race = ""
    for n in exercise.worlds:
        with world(n) as call:
            try:
                _, actual = _right_in_all_cases(exercise, call, n)
                if n == max(exercise.worlds):
                    if exercise.race is not None:
                        run, race = _raced(exercise, exercise.race, call, n)
                    elif exercise.forbids:
                        run = _run_on_lan(actual)
            except _NotRight as error:
                return Judgement(False, error.words)
    if run is not None and not run.messages:
        run = None
    return Judgement(True, f"{_words_of_cases(exercise)}.{race}", run)


class _NotRight(Exception):
    """The answer is not right.

    Attributes:
        words: of the verdict.
    """

    def __init__(self, words: str):
        super().__init__(words)
        self.words = words


def _right_in_all_cases(exercise: Exercise, call: Call, n: int) -> Pair:
    """Try every case on `n` ranks; what was done in the last one.

    Raises:
        _NotRight: it failed, or did something wrong.
    """
    for case in exercise.cases:
        where = _words_of_case(n, case, exercise)
        try:
            expected, actual = call(case)
        except AnswerFailed as error:
            raise _NotRight(_raised(where, error, n, exercise)) from error
        words = _wrong(where, compared(exercise, expected, actual), exercise)
        if words:
            raise _NotRight(words)
    return expected, actual


def _raced(exercise: Exercise, race: Race, call: Call, n: int) -> tuple[Trace, str]:
    """The answer on virtual machines with the input of the race, and its times in words.

    Raises:
        _NotRight: it failed, or did something wrong.
    """
    where = _words_of_case(n, race.case, exercise)
    try:
        others, own = call(race.case)
    except AnswerFailed as error:
        raise _NotRight(_raised(where, error, n, exercise)) from error
    outcomes = compared(exercise, others, own)
    words = _wrong(where, outcomes, exercise)
    if words:
        raise _NotRight(words)
    run = _run_on_lan(own)
    library = max(simulate([one.events for one in others], LAN).clocks)
    size = format_bytes(math.prod(outcomes[0].size))
    yours, ours, librarys, target = (
        format_seconds(seconds).strip()
        for seconds in (run.seconds, race.ours, library, race.target)
    )
    met = "met" if run.seconds < race.target else "not met yet"
    return run, (
        f"\n{size} on a simulated network ({LAN}): "
        f"yours {yours}, ours {ours}, the simulated library's {librarys}."
        f"\nThe target, less than {target}, is {met}."
    )


def _run_on_lan(observed: Sequence[Observed]) -> Trace:
    """What the answer sent, on virtual machines."""
    ranks = range(len(observed))
    run = Trace(ranks, f"simulated: {count(len(ranks), 'rank')}, {LAN}")
    result = simulate([one.events for one in observed], LAN)
    run.finish(virtual.from_simulation(result, ranks), {})
    return run


def _words_of_cases(exercise: Exercise) -> str:
    """What a right answer was tried with: "8 cases with 1, 2 and 3 ranks"."""
    cases = count(len(exercise.cases) * len(exercise.worlds), "case")
    *first, last = exercise.worlds
    if last == 1:
        return cases
    if not first:
        return f"{cases} with {last} ranks"
    return f"{cases} with {', '.join(map(str, first))} and {last} ranks"


def _words_of_case(n: int, case: Any, exercise: Exercise) -> str:
    """Which case it is: "3 ranks and 7 numbers of float32"."""
    if exercise.given is not numbers:
        return "these arguments" if exercise.worlds == (1,) else count(n, "rank")
    (tensor,) = numbers(0, n, case)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{count(n, 'rank')} and {count(len(tensor), 'number')} of {dtype}"


def _wrong(where: str, outcomes: Sequence[Outcome], exercise: Exercise) -> str:
    """What is wrong with what the ranks did in the case that `where` describes; "" for nothing."""
    if not all(one.right for one in outcomes):
        return _wrong_values(where, outcomes, of_ranks=exercise.worlds != (1,))
    called: set[str] = set()
    for one in outcomes:
        called.update(event.name for event in one.events if isinstance(event, CollectiveCall))
    forbidden = [f"dist.{name}" for name in exercise.forbids if name in called]
    if forbidden:
        names = " and ".join(forbidden)
        return f"The values are right, but it calls {names}, which this exercise rules out."
    limits = _limits_of(exercise, outcomes)
    words = "" if limits is None else _too_much(outcomes, limits)
    if not words:
        return ""
    broken = f"The values are right, but with {where}, {words}."
    return " ".join([broken, *exercise.texts("Limit")])


def _limits_of(exercise: Exercise, outcomes: Sequence[Outcome]) -> Limits | None:
    """The limits in a case, which may depend on the number of ranks and the size of the tensor."""
    if not callable(exercise.limits):
        return exercise.limits
    length, item = outcomes[0].size
    return exercise.limits(len(outcomes), length, item)


def _wrong_values(where: str, outcomes: Sequence[Outcome], of_ranks: bool) -> str:
    """A grid of what the ranks should have and what they have, and what that suggests.

    Without `of_ranks` it is a formula, which no rank is named for.
    """
    lines = [f"With {where} it gives wrong values:", repr(_grid(outcomes, of_ranks))]
    lines += _reasons(outcomes, of_ranks) or _mixed_up(outcomes)
    for rank, one in enumerate(outcomes):
        if one.printed:
            lines.append(f"rank {rank} printed: {one.printed}")
    return "\n".join(lines)


def _grid(outcomes: Sequence[Outcome], of_ranks: bool) -> Table:
    """A row for each rank; what was given only where there were arguments."""
    has_arguments = any(one.given for one in outcomes)
    heads = ["", "given", "expected", "yours", ""]
    rows = [
        [
            f"rank {rank}" if of_ranks else "",
            one.given,
            one.expected,
            one.actual,
            "" if one.right else "wrong",
        ]
        for rank, one in enumerate(outcomes)
    ]
    if not has_arguments:
        for row in [heads, *rows]:
            del row[1]
    return Table("", tuple(heads), tuple(map(tuple, rows)), "l" * len(heads))


def _reasons(outcomes: Sequence[Outcome], of_ranks: bool) -> list[str]:
    """What is wrong, in words, where that is known."""
    ranks_by_reason = grouped((one.why, rank) for rank, one in enumerate(outcomes) if one.why)
    if not of_ranks:
        return list(ranks_by_reason)
    return [f"{rank_list(ranks).capitalize()}: {why}" for why, ranks in ranks_by_reason.items()]


def _mixed_up(outcomes: Sequence[Outcome]) -> list[str]:
    """Who has whose values, in a line, if all wrong values are those of other ranks."""
    expected = [one.expected for one in outcomes]
    wrong = {rank: one.actual for rank, one in enumerate(outcomes) if not one.right}
    if not set(wrong.values()) <= set(expected):
        return []
    first = min(wrong)
    owner = expected.index(wrong[first])
    return [f"Rank {first} has what rank {owner} should have."]


def _raised(where: str, error: AnswerFailed, n: int, exercise: Exercise) -> str:
    """What the notebook shows for a cell that failed in this way.

    It reads as if the world of `n` ranks were the whole cluster: their group is not named. What it
    says about the time after the cell is left out.
    """
    all_ranks = rank_list(list(range(n)))
    message = re.sub(rf"(, )?group of {all_ranks}(?=\))", "", error.message)
    lines = [line for line in message.splitlines() if not line.startswith(AFTERWARDS)]
    advice = exercise.texts("Stuck") if error.stuck else []
    return "\n".join([f"With {where} it ends in {error.kind}:", *lines, *advice])


def _too_much(outcomes: Sequence[Outcome], limits: Limits) -> str:
    """What a right answer does more often, or with more bytes, than it needs to; "" for nothing."""
    result = simulate([one.events for one in outcomes], A_STEP_A_SECOND)
    sent: dict[int, list[int]] = grouped((one.src, one.num_bytes) for one in result.transfers)
    total = {rank: sum(sizes) for rank, sizes in sent.items()}
    messages = {rank: len(sizes) for rank, sizes in sent.items()}
    largest = {rank: max(sizes) for rank, sizes in sent.items()}
    calls = {}
    for rank, one in enumerate(outcomes):
        calls[rank] = len([event for event in one.events if isinstance(event, CollectiveCall)])
    steps = round(max(result.clocks))
    return (
        _above("sends {}", total, limits.num_bytes, format_bytes)
        or _above("sends {} messages", messages, limits.messages, str)
        or _above("sends a message of {}", largest, limits.largest, format_bytes)
        or _above("calls {} collectives", calls, limits.calls, str)
        or _too_many_steps(steps, limits.steps)
    )


def _above(
    words: str, by_rank: dict[int, int], limit: int | None, form: Callable[[int], str]
) -> str:
    """Which rank does most, and how much would do; "" if that is within the limit.

    Args:
        words: what the rank does, with {} for how much.
        by_rank: how much each rank does.
        limit: how much a rank may do; None for no limit.
        form: how a number is written.
    """
    if limit is None or not by_rank:
        return ""
    rank = max(by_rank, key=by_rank.__getitem__)
    if by_rank[rank] <= limit:
        return ""
    return f"rank {rank} {words.format(form(by_rank[rank]))} where {form(limit)} would do"


def _too_many_steps(steps: int, limit: int | None) -> str:
    if limit is None or steps <= limit:
        return ""
    return f"{steps} messages follow each other where {limit} would do"
