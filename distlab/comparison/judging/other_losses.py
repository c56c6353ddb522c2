"""Why the backward passes of the ranks give other gradients than one process: the loss, mostly.

Runs where a comparison is judged, called by other_gradients.py.
"""

from __future__ import annotations

from collections import Counter

from distlab.comparison.judging.forward_passes import losses_of, rows_of, unequal_weights
from distlab.comparison.judging.mixtures import find_multiple
from distlab.comparison.judging.pairs import Numbers
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import number
from distlab.comparison.records import Sketch

ALMOST = 1e-3  # relative difference of losses that are taken for equal


def losses_in_words(numbers: Numbers, step: int) -> list[str]:
    """That the losses, however they are put together, are not that of one process."""
    losses = losses_of(numbers.world, step)
    if _is_right_loss(numbers, step) is not False:
        return []
    mean = sum(losses.values()) / len(losses)
    expected = losses_of(numbers.reference, step)
    right = sum(expected.values()) / len(expected)
    return [
        f"The mean of the ranks' losses is {number(mean, 4)}, and {number(right, 4)} in one "
        "process."
    ]


def _is_right_loss(numbers: Numbers, step: int) -> bool | None:
    """Whether the ranks' losses can be put together to that of one process; None if not known."""
    losses = losses_of(numbers.world, step)
    expected = losses_of(numbers.reference, step)
    if not losses or not expected:
        return None
    right = sum(expected.values()) / len(expected)
    total = sum(losses.values())
    possible = [total, total / len(losses), *losses.values()]
    for weights in unequal_weights(numbers.world, step).values():
        weight = sum(weights[rank] for rank in losses)
        if weight:
            possible.append(sum(losses[rank] * weights[rank] for rank in losses) / weight)
    return any(abs(one - right) <= ALMOST * abs(right) for one in possible)


def why_other_loss(numbers: Numbers, step: int, is_known_own: bool) -> tuple[str, list[str]]:
    """Words that end the sentence, and further sentences.

    Args:
        numbers: of both worlds.
        step: the first one whose gradient is another one.
        is_known_own: whether the ranks' own gradients were seen, and are not parts of the right one
            already.
    """
    times = _times_parameters(numbers, step)
    if times is not None:
        return ", because a penalty on the parameters counts otherwise", [
            f"The difference is {number(times, 3)} times the parameters themselves.",
            "A term that does not depend on rows has to count once: where gradients are averaged, "
            "add it on every rank; where they are summed, divide it by world_size.",
        ]
    is_right = _is_right_loss(numbers, step)
    if is_right and is_known_own:
        return ", although the loss is the same, so a part of the loss carries no gradient", [
            "Usual reasons: what dist.all_gather and dist.all_reduce give carries no gradient, nor "
            "does anything after detach(), no_grad(), .data or item(). Gather with "
            "torch.distributed.nn.functional, or put the rank's own part back in its place."
        ]
    if is_right is False and _has_the_same_rows(numbers, step):
        return ", because the same rows give another loss", [
            "Usual reasons: targets of other rows; a loss that is no mean over rows, as negatives, "
            "weights, or a mean and a deviation are taken from the rank's own rows; a term that "
            "only some ranks add."
        ]
    if is_known_own:
        return ", because the ranks' backward passes already give others", [
            "Look at the forward pass and the loss: a part of a row that is missing or in another "
            "place, positions that begin at 0 on every rank, targets of other rows."
        ]
    return "", []


def _times_parameters(numbers: Numbers, step: int) -> float | None:
    """By what the parameters are multiplied to give the gradient's difference; None if by none."""
    differences: dict[str, Sketch] = {}
    values: dict[str, Sketch] = {}
    bounds: dict[str, float] = {}
    for name, pair in numbers.gradients(step).items():
        before = numbers.reference.previous_value(step, name)
        if before is None:
            return None
        differences[name] = pair.found - pair.expected
        values[name] = before
        bounds[name] = 2 * pair.bound
    return find_multiple(differences, values, bounds)


def _has_the_same_rows(numbers: Numbers, step: int) -> bool:
    """Whether the ranks together used the rows that one process used."""
    used = _rows(numbers.world, step)
    return bool(used) and used == _rows(numbers.reference, step)


def _rows(world: World, step: int) -> Counter[bytes]:
    rows: Counter[bytes] = Counter()
    for record in world.records:
        rows.update(rows_of(record, step))
    return rows
