"""Whether an answer is right, and the words of its verdict, from what its calls did on the ranks.

Runs on the process that judges: the notebook's kernel, called by check.py, or a marking process,
where another process calls the answer. Both give a `World`, which makes the calls.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from distlab.checking.comparing import Outcome, compare
from distlab.checking.exercises import Exercise, Limits, Race, numbers
from distlab.checking.observed import Observed
from distlab.errors import DeadlockError, RanksFailed, RankTimeout
from distlab.simulated.events import CollectiveCall
from distlab.simulated.network import Network
from distlab.simulated.results import Result
from distlab.simulated.simulation import simulate
from distlab.tables import Table, count, format_bytes, format_seconds
from distlab.traces import virtual
from distlab.traces.trace import Trace
from distlab.words import rank_list

AFTERWARDS = ("Freed after", "The process group is rebuilt", "The next cell starts", "Run it again")
LAN = Network("5 us", "100 Gb/s")  # on which a right answer is drawn and timed
# Here bytes take no time, so that the seconds count the messages that follow each other.
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
    """The AnswerFailed for an error that a cluster has raised."""
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


def judge(exercise: Exercise, world: World) -> Judgement:
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
                    run, race = _right_in_largest_world(exercise, call, actual)
            except _NotRight as error:
                return Judgement(False, error.words)
    if run is not None and not run.messages:
        run = None
    tried = _words_of_cases(exercise)
    return Judgement(True, f"{tried}.{race}", run)


class _NotRight(Exception):
    """The answer is not right.

    Attributes:
        words: of the verdict.
    """

    def __init__(self, words: str):
        super().__init__(words)
        self.words = words


def _right_in_all_cases(exercise: Exercise, call: Call, n: int) -> Pair:
    """Try every case on `n` ranks, and return what was done in the last one.

    Raises:
        _NotRight: it failed, or did something wrong.
    """
    for case in exercise.cases:
        where = _words_of_case(n, case, exercise)
        try:
            expected, actual = call(case)
        except AnswerFailed as error:
            raise _NotRight(_words_of_failure(where, error, n, exercise)) from error
        words = _words_if_wrong(where, compare(exercise, expected, actual), exercise)
        if words:
            raise _NotRight(words)
    return expected, actual


def _right_in_largest_world(
    exercise: Exercise, call: Call, actual: Sequence[Observed]
) -> tuple[Trace | None, str]:
    """What to draw of a right answer, and its times in words; None and "" for neither.

    Args:
        exercise: whose answer it is.
        call: tries a case in the largest world.
        actual: what the answer did in the last case there.

    Raises:
        _NotRight: it failed in the race, or did something wrong.
    """
    if exercise.race is not None:
        return _race(exercise, exercise.race, call, len(actual))
    if exercise.forbids:
        return _run_on_lan(actual), ""
    return None, ""


def _race(exercise: Exercise, race: Race, call: Call, n: int) -> tuple[Trace, str]:
    """The answer on virtual machines with the input of the race, and its times in words.

    Raises:
        _NotRight: it failed, or did something wrong.
    """
    where = _words_of_case(n, race.case, exercise)
    try:
        others, own = call(race.case)
    except AnswerFailed as error:
        raise _NotRight(_words_of_failure(where, error, n, exercise)) from error
    outcomes = compare(exercise, others, own)
    words = _words_if_wrong(where, outcomes, exercise)
    if words:
        raise _NotRight(words)
    run = _run_on_lan(own)
    library = max(_simulate(others, LAN).clocks)
    num_bytes = math.prod(outcomes[0].size)
    return run, _words_of_race(race, num_bytes, run.seconds, library)


def _words_of_race(race: Race, num_bytes: int, seconds: float, library: float) -> str:
    """How long an answer takes in a race, beside ours and the simulated library's."""
    size = format_bytes(num_bytes)
    yours = format_seconds(seconds).strip()
    ours = format_seconds(race.ours).strip()
    librarys = format_seconds(library).strip()
    target = format_seconds(race.target).strip()
    met = "met" if seconds < race.target else "not met yet"
    return (
        f"\n{size} on a simulated network ({LAN}): "
        f"yours {yours}, ours {ours}, the simulated library's {librarys}."
        f"\nThe target, less than {target}, is {met}."
    )


def _run_on_lan(observed: Sequence[Observed]) -> Trace:
    """What the answer sent, on virtual machines."""
    n = len(observed)
    run = Trace(range(n), f"simulated: {count(n, 'rank')}, {LAN}")
    result = _simulate(observed, LAN)
    run.finish(virtual.from_simulation(result, range(n)), {})
    return run


def _simulate(ranks: Sequence[Observed | Outcome], network: Network) -> Result:
    """What becomes of what each of these ranks did, on virtual machines."""
    return simulate([one.events for one in ranks], network)


def _words_of_cases(exercise: Exercise) -> str:
    """What a right answer was tried with: "8 cases with 1, 2 and 3 ranks"."""
    cases = count(len(exercise.cases) * len(exercise.worlds), "case")
    *others, last = exercise.worlds
    if last == 1:
        return cases
    if not others:
        return f"{cases} with {last} ranks"
    numbers_of_others = ", ".join(map(str, others))
    return f"{cases} with {numbers_of_others} and {last} ranks"


def _words_of_case(n: int, case: Any, exercise: Exercise) -> str:
    """Which case it is: "3 ranks and 7 numbers of float32"."""
    if exercise.given is not numbers:
        if exercise.worlds == (1,):
            return "these arguments"
        return count(n, "rank")
    (tensor,) = numbers(0, n, case)
    length = count(len(tensor), "number")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{count(n, 'rank')} and {length} of {dtype}"


def _words_if_wrong(where: str, outcomes: Sequence[Outcome], exercise: Exercise) -> str:
    """What is wrong with what the ranks did in the case that `where` describes; "" for nothing."""
    if not all(one.right for one in outcomes):
        return _words_of_wrong_values(where, outcomes, of_ranks=exercise.worlds != (1,))
    forbidden = _forbidden_calls(outcomes, exercise)
    if forbidden:
        names = " and ".join(forbidden)
        return f"The values are right, but it calls {names}, which this exercise rules out."
    limits = _limits_of(exercise, outcomes)
    if limits is None:
        return ""
    words = _words_if_too_much(outcomes, limits)
    if not words:
        return ""
    broken = f"The values are right, but with {where}, {words}."
    return " ".join([broken, *exercise.texts("Limit")])


def _forbidden_calls(outcomes: Sequence[Outcome], exercise: Exercise) -> list[str]:
    """The collectives that some rank has called, though the exercise rules them out."""
    called: set[str] = set()
    for one in outcomes:
        called.update(call.name for call in _collective_calls(one))
    return [f"dist.{name}" for name in exercise.forbids if name in called]


def _collective_calls(outcome: Outcome) -> list[CollectiveCall]:
    return [event for event in outcome.events if isinstance(event, CollectiveCall)]


def _limits_of(exercise: Exercise, outcomes: Sequence[Outcome]) -> Limits | None:
    """The limits in a case, which may depend on the number of ranks and the size of the tensor."""
    if not callable(exercise.limits):
        return exercise.limits
    length, element_size = outcomes[0].size
    return exercise.limits(len(outcomes), length, element_size)


def _words_of_wrong_values(where: str, outcomes: Sequence[Outcome], of_ranks: bool) -> str:
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
    if not has_arguments:
        heads.remove("given")
    rows = []
    for rank, one in enumerate(outcomes):
        row = [f"rank {rank}" if of_ranks else ""]
        if has_arguments:
            row.append(one.given)
        row.append(one.expected)
        row.append(one.actual)
        row.append("" if one.right else "wrong")
        rows.append(tuple(row))
    return Table("", tuple(heads), tuple(rows), "l" * len(heads))


def _reasons(outcomes: Sequence[Outcome], of_ranks: bool) -> list[str]:
    """What is wrong, in words, where that is known."""
    ranks_by_reason: dict[str, list[int]] = {}
    for rank, one in enumerate(outcomes):
        if one.why:
            ranks_by_reason.setdefault(one.why, []).append(rank)
    if not of_ranks:
        return list(ranks_by_reason)
    lines = []
    for why, ranks in ranks_by_reason.items():
        whose = rank_list(ranks).capitalize()
        lines.append(f"{whose}: {why}")
    return lines


def _mixed_up(outcomes: Sequence[Outcome]) -> list[str]:
    """Which rank has whose values, in a line, if all wrong values are those of other ranks."""
    expected = [one.expected for one in outcomes]
    wrong = [rank for rank, one in enumerate(outcomes) if not one.right]
    for rank in wrong:
        if outcomes[rank].actual not in expected:
            return []
    first = wrong[0]
    owner = expected.index(outcomes[first].actual)
    return [f"Rank {first} has what rank {owner} should have."]


def _words_of_failure(where: str, error: AnswerFailed, n: int, exercise: Exercise) -> str:
    """The words of a failed call: what a notebook shows for a cell that fails in this way.

    They read as if the world of `n` ranks were the whole cluster, so the group of these ranks is
    not named. Lines about the time after the cell are left out.
    """
    all_ranks = rank_list(list(range(n)))
    message = re.sub(rf"(, )?group of {all_ranks}(?=\))", "", error.message)
    lines = [f"With {where} it ends in {error.kind}:"]
    for line in message.splitlines():
        if not line.startswith(AFTERWARDS):
            lines.append(line)
    if error.stuck:
        lines += exercise.texts("Stuck")
    return "\n".join(lines)


def _words_if_too_much(outcomes: Sequence[Outcome], limits: Limits) -> str:
    """What a right answer does more often, or with more bytes, than it needs to; "" for nothing."""
    result = _simulate(outcomes, A_STEP_A_SECOND)
    total: Counter[int] = Counter()
    messages: Counter[int] = Counter()
    largest: Counter[int] = Counter()
    for sent in result.transfers:
        total[sent.src] += sent.num_bytes
        messages[sent.src] += 1
        largest[sent.src] = max(largest[sent.src], sent.num_bytes)
    calls: Counter[int] = Counter()
    for rank, one in enumerate(outcomes):
        calls[rank] = len(_collective_calls(one))
    steps = round(max(result.clocks))
    return (
        _words_if_above("sends {}", total, limits.num_bytes, format_bytes)
        or _words_if_above("sends {} messages", messages, limits.messages, str)
        or _words_if_above("sends a message of {}", largest, limits.largest, format_bytes)
        or _words_if_above("calls {} collectives", calls, limits.calls, str)
        or _words_if_too_many_steps(steps, limits.steps)
    )


def _words_if_above(
    words: str, by_rank: Mapping[int, int], limit: int | None, form: Callable[[int], str]
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
    rank, most = max(by_rank.items(), key=lambda item: item[1])
    if most <= limit:
        return ""
    what_it_does = words.format(form(most))
    return f"rank {rank} {what_it_does} where {form(limit)} would do"


def _words_if_too_many_steps(steps: int, limit: int | None) -> str:
    if limit is None or steps <= limit:
        return ""
    return f"{steps} messages follow each other where {limit} would do"
