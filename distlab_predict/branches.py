"""Whether a step depends on data: programs that branch on it are recorded with both answers.

Called by predict.py, on the notebook's kernel. deciding.py gives the answers, in the process of a
rank, and notes which lines have asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from distlab.tables import count, format_bytes
from distlab.wire.messages import Failure
from distlab_predict.no_data import NEEDED
from distlab_predict.nodes import Branch, Node, Outcomes, Recording, Run

# A program is recorded once more for each line that branches on data, so there is a limit.
MOST_LINES = 6


def decided(
    run: Run, outcomes: Outcomes, record: Callable[[Sequence[Run]], list[Outcomes]]
) -> Outcomes:
    """The same outcomes, with what was assumed at lines where only data decides.

    Each such line was answered with False. Here the program is recorded again, with True at one of
    these lines. If its step then is another one, it is a failure.

    Args:
        run: what was recorded.
        outcomes: what its ranks have noted.
        record: records runs.
    """
    known: set[str] = set()
    wanted = _new_lines(run, outcomes, known)
    while wanted:
        if len(known) > MOST_LINES:
            return [_refused(wanted[-1][0], _too_many())]
        runs = [replace(asked, true=(*asked.true, branch.line)) for branch, asked in wanted]
        recorded = record(runs)
        found = []
        for (branch, _), again, others in zip(wanted, runs, recorded, strict=True):
            outcomes = _compared(branch, outcomes, others)
            found += _new_lines(again, others, known)
        wanted = found
    return outcomes


def _new_lines(run: Run, outcomes: Outcomes, known: set[str]) -> list[tuple[Branch, Run]]:
    """Where a run has asked and no other one before; these become known."""
    found = []
    for outcome in outcomes:
        if not isinstance(outcome, Recording):
            return []
        for branch in outcome.branches:
            if branch.line not in known:
                known.add(branch.line)
                found.append((branch, run))
    return found


def _compared(branch: Branch, found: Outcomes, others: Outcomes) -> Outcomes:
    """The outcomes with a sentence on this line; a failure if the others are of another step."""
    failures = [one for one in others if isinstance(one, Failure)]
    if any(one.kind == NotImplementedError.__name__ for one in failures):
        return list(failures)  # what it would do is not known
    if failures:
        return _with(found, f"{_taken(branch)}; with True the program raises {failures[0].kind}")
    by_rank = {one.rank: one for one in others if isinstance(one, Recording)}
    difference = ""
    for own in found:
        if isinstance(own, Failure):
            return found
        other = by_rank.get(own.rank)
        if other is None or not _take_the_same_step(own, other):
            return [_refused(branch)]
        difference = difference or _difference(own, other)
    return _with(found, f"{_taken(branch)}; with True the step is the same{difference}")


def _taken(branch: Branch) -> str:
    return f"{branch.line} depends on data, and is taken as False"


def _with(outcomes: Outcomes, sentence: str) -> Outcomes:
    """The same recordings, in which this is assumed too."""
    noted: Outcomes = []
    for outcome in outcomes:
        if isinstance(outcome, Recording):
            outcome = replace(outcome, assumed=(*outcome.assumed, sentence))
        noted.append(outcome)
    return noted


def _too_many() -> str:
    """Why a program is refused of which more lines ask than are tried."""
    return (
        f"only {count(MOST_LINES, 'line')} that the values of tensors decide can be tried both "
        "ways, and this program has more: leave some of them out while you predict"
    )


def _refused(branch: Branch, why: str = NEEDED) -> Failure:
    """The failure of a program whose step depends, or may depend, on what a line decides."""
    return Failure(branch.rank, NotImplementedError.__name__, why, branch.stack)


# --- two recordings ---


def _take_the_same_step(own: Recording, other: Recording) -> bool:
    """Whether the last step that both take has the same nodes."""
    steps = min(len(own.steps), len(other.steps))
    return steps > 0 and _step(own, steps - 1) == _step(other, steps - 1)


def _step(recording: Recording, number: int) -> list[Node]:
    """The nodes of a step, wherever it begins, whichever lines they are of, and without views."""
    begin, end = recording.steps[number]
    nodes: list[Node] = []
    for node in recording.nodes[begin:end]:
        after = tuple(sorted({max(index - begin, -1) for index in node.after}))
        nodes.append(replace(node, after=after, line="", host=0.0))
    return nodes


def _difference(own: Recording, other: Recording) -> str:
    """What else is not the same with the other answer, as the end of a sentence."""
    if len(other.steps) < len(own.steps):
        return f", but the program ends after {count(len(other.steps), 'step')}"
    peak = sum(other.peak.values())
    if peak != sum(own.peak.values()):
        return f", but memory has {format_bytes(peak)} at its peak"
    return ""
