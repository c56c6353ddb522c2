"""Why one layout is better than another, and what binds, in words. Pure functions.

Called by plans.py, on the notebook's kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlab_predict.layouts import MARGIN, Layout, Step, words_of
from distlab_predict.prediction_shown import gibibytes

LAUNCHES = "launches by the processor"
WORTH_SAYING = 0.01  # of the best step
TOO_CLOSE = "too close to call: measure both"
# what helps where most of the memory is of a kind
HELP = {
    "activations": "recompute more, or give each rank fewer tokens at once",
    "unsharded parameters": "divide each layer, or gather smaller parts",
    "gradients": "shard over more ranks",
    "optimizer": "shard over more ranks",
    "parameters": "shard over more ranks",
}


def percent(share: float) -> str:
    """A share in a sentence: "12 %", "0.4 %"."""
    if abs(share) < 0.0095:
        return f"{100 * share:.1f} %"
    return f"{100 * share:.0f} %"


def changes(best: Layout, other: Layout) -> str:
    """How the choice of another layout differs: "pipeline=4 instead of 1"."""
    parts = []
    for name, value in other.choice.items():
        if value != best.choice[name]:
            parts.append(f"{name}={value!r} instead of {best.choice[name]!r}")
    return ", ".join(parts)


def why_slower(best: Step, other: Step) -> str:
    """What another step loses for the same work: "12 % more computing".

    What it gains follows after "but".
    """
    work = other.cost / best.cost * best.seconds / other.seconds  # of the best step, in its tokens
    parts = {
        "computing": (best.computing, other.computing * work),
        "exposed communication": (best.exposed, other.exposed * work),
        LAUNCHES: (best.launches, other.launches * work),
        "idle time": (best.idle, other.idle * work),
    }
    lost = {}
    gained = {}
    for what, (own, others) in parts.items():
        share = (others - own) / best.seconds
        words = _difference(what, own, others, best.seconds, other.seconds * work)
        if share > WORTH_SAYING:
            lost[words] = share
        elif share < -WORTH_SAYING:
            gained[words] = -share
    sentence = ", ".join(sorted(lost, key=lost.__getitem__, reverse=True))
    if not sentence:
        return "nothing that is worth a percent of the step"
    if gained:
        but = ", ".join(sorted(gained, key=gained.__getitem__, reverse=True))
        sentence = f"{sentence}, but {but}"
    return sentence


def _difference(what: str, own: float, others: float, step: float, others_step: float) -> str:
    """A part of a step that is larger or smaller: of computing by how much, else as shares."""
    if what == "computing" and own:
        more = "more" if others > own else "less"
        return f"{percent(abs(others / own - 1))} {more} computing"
    return f"{what} {percent(others / others_step)} of the step instead of {percent(own / step)}"


def what_binds(best: Layout, layouts: Sequence[Layout]) -> tuple[str, list[str]]:
    """What keeps the best layout from being faster, and sentences with the numbers behind that.

    It is what would save most of the step if it were gone: "memory", if a layout that does not fit
    is faster, "exposed communication", "launches by the processor" or "idle time". If none of them
    is worth the margin of predictions, it is "computing".
    """
    step = best.step
    if step is None:
        return "", []
    shares = {
        "exposed communication": step.exposed / step.seconds,
        "idle time": step.idle / step.seconds,
    }
    if step.launches > WORTH_SAYING * step.seconds:
        shares[LAUNCHES] = step.launches / step.seconds
    words = [f"computing is {percent(step.computing / step.seconds)} of the step"]
    words += [f"{what} {percent(share)}" for what, share in shares.items()]
    sentences = [", ".join(words)]
    too_large = fastest_too_large(layouts)
    shares["memory"] = 0.0
    if too_large is not None and too_large.step is not None and too_large.rate > best.rate:
        shares["memory"] = 1 - best.rate / too_large.rate
        faster = percent(too_large.rate / best.rate - 1)
        need = gibibytes(too_large.step.needed)
        sentences.append(f"{changes(best, too_large)} would be {faster} faster, but needs {need}")
    largest = max(shares, key=shares.__getitem__)
    if shares[largest] < MARGIN:
        largest = "computing"
    return largest, sentences


def fastest_too_large(layouts: Sequence[Layout]) -> Layout | None:
    """The fastest of the predicted layouts that do not fit."""
    too_large = [layout for layout in layouts if layout.step is not None and not layout.fits]
    return max(too_large, key=lambda layout: layout.rate, default=None)


def nothing_fits(nearest: Layout) -> str:
    """By how much the layout misses that needs least memory, and what would help."""
    step = nearest.step
    if step is None or step.limit is None:
        return "No layout could be predicted."
    kinds: Mapping[str, float] = step.memory
    largest = max(kinds, key=kinds.__getitem__)
    advice = HELP.get(largest, "give each rank fewer of them")
    return (
        f"No layout fits. {words_of(nearest.choice)} comes nearest and needs "
        f"{gibibytes(step.needed)} of {gibibytes(step.limit)}. "
        f"Most of that is {largest}, {gibibytes(kinds[largest])}: {advice}."
    )
