"""The words of a verdict on an answer: one line when it passes, the smallest case that fails when it does not.

Called by check.py in the notebook's kernel; pure functions of what the ranks report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distlab.checking import Exercise, Limits
from distlab.errors import RanksFailed
from distlab.plotting.units import Table, format_bytes
from distlab.simulated.events import Collective
from distlab.simulated.network import Network
from distlab.simulated.simulation import simulate
from distlab.simulated.trial import Outcome
from distlab.text import grouped, rank_list

MOST_PRINTED = 160  # characters of what a rank prints
AFTERWARDS = ("Freed after", "The process group is rebuilt", "The next cell starts")
A_STEP_A_SECOND = Network(latency=1.0, bandwidth=1e30)  # where only messages that follow each other take time


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        name: of the exercise.
        passed: whether the answer is right.
        attempted: False for a stub that only raises NotImplementedError.
        words: what is wrong, or what a right answer did.
    """

    name: str
    passed: bool
    attempted: bool = True
    words: str = ""

    def __repr__(self) -> str:
        state = "passed" if self.passed else "not yet" if self.attempted else "not attempted"
        return f"{self.name}: {state}" + (f". {self.words}" if self.words else "")


def wrong(where: str, outcomes: Sequence[Outcome], exercise: Exercise) -> str:
    """What is wrong with what the ranks did in a case, which `where` describes; "" for nothing."""
    if not all(one.right for one in outcomes):
        return wrong_values(where, outcomes)
    called = {event.name for one in outcomes for event in one.events if isinstance(event, Collective)}
    if found := [f"dist.{name}" for name in exercise.forbids if name in called]:
        return f"The values are right, but it calls {' and '.join(found)}. The exercise is to do it without."
    limits = exercise.limits
    if limits is None:
        return ""
    if not isinstance(limits, Limits):
        limits = limits(len(outcomes), *outcomes[0].size)
    words = too_much(outcomes, limits)
    return words and " ".join([f"The values are right, but with {where} {words}.", *exercise.texts("Limit")])


def wrong_values(where: str, outcomes: Sequence[Outcome]) -> str:
    """What the ranks should have and what they have, as a grid, and what that looks like."""
    rows = [("", "given", "expected", "yours", "")]
    for rank, one in enumerate(outcomes):
        rows.append((f"rank {rank}", one.given, one.expected, one.actual, "" if one.right else "wrong"))
    if not any(one.given for one in outcomes):
        rows = [(rank, *rest) for rank, _, *rest in rows]
    grid = Table("", rows[0], tuple(rows[1:]), "l" * len(rows[0]))
    reasons = grouped((one.why, rank) for rank, one in enumerate(outcomes) if one.why)
    notes = [f"{rank_list(ranks).capitalize()}: {why}" for why, ranks in reasons.items()]
    swapped = [rank for rank, one in enumerate(outcomes) if not one.right]
    expected = [one.expected for one in outcomes]
    if not notes and all(outcomes[rank].actual in expected for rank in swapped):
        first = swapped[0]
        notes = [f"What rank {first} has is right for rank {expected.index(outcomes[first].actual)}."]
    texts = [" ".join(one.printed.split()) for one in outcomes]
    printed = [f"rank {rank} printed: {text[:MOST_PRINTED]}" for rank, text in enumerate(texts) if text]
    return "\n".join([f"With {where} it gives wrong values:", repr(grid), *notes, *printed])


def raised(where: str, error: RanksFailed, n: int, everyone: int) -> str:
    """What the notebook shows of a cell that failed in this way, as if its world of `n` ranks were all there are.

    What it says of the time after the cell is left out.
    """
    message = re.sub(rf"(, )?group of {rank_list(range(n))}(?=\))", "", str(error))
    message = _without_others(message.replace(f" of {everyone} ranks", f" of {n} ranks"), n)
    lines = [line for line in message.splitlines() if not line.startswith(AFTERWARDS)]
    return "\n".join([f"With {where} it ends in {type(error).__name__}:", *lines])


def _without_others(message: str, n: int) -> str:
    """The message with lists of ranks that name only the first `n`: "ranks 0, 2 and 3" of two is "rank 0"."""

    def shorter(match: re.Match[str]) -> str:
        spans = re.findall(r"(\d+)(?:-(\d+))?", match[0])
        ranks = [rank for first, last in spans for rank in range(int(first), int(last or first) + 1) if rank < n]
        return rank_list(ranks) if ranks else match[0]

    message = re.sub(r"\branks \d+(?:-\d+)?(?:(?:, | and )\d+(?:-\d+)?)*", shorter, message)
    return re.sub(r"(\brank \d+, which) have\b", r"\1 has", message)


def too_much(outcomes: Sequence[Outcome], limits: Limits) -> str:
    """What a right answer does more often, or with more bytes, than it has to; "" for nothing."""
    result = simulate([one.events for one in outcomes], A_STEP_A_SECOND)
    sent = grouped((transfer.src, transfer.num_bytes) for transfer in result.transfers)
    calls = {rank: sum(isinstance(event, Collective) for event in one.events) for rank, one in enumerate(outcomes)}
    for words, by_rank, most, form in (
        ("sends {}", {rank: sum(sizes) for rank, sizes in sent.items()}, limits.num_bytes, format_bytes),
        ("sends {} messages", {rank: len(sizes) for rank, sizes in sent.items()}, limits.messages, str),
        ("sends a message of {}", {rank: max(sizes) for rank, sizes in sent.items()}, limits.largest, format_bytes),
        ("calls {} collectives", calls, limits.calls, str),
    ):
        rank = max(by_rank, key=by_rank.get, default=None)
        if most is not None and rank is not None and by_rank[rank] > most:
            return f"rank {rank} {words.format(form(by_rank[rank]))} where {_enough(most, form)}"
    steps = round(max(result.clocks))
    if limits.steps is not None and steps > limits.steps:
        return f"{steps} messages follow each other where {_enough(limits.steps)}"
    return ""


def _enough(most: int, form: Callable[[int], str] = str) -> str:
    return f"{form(most)} {'is enough' if most == 1 else 'suffice'}"
