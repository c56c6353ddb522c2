"""Findings about gradients that no factor explains: means of unequal parts, and anything else.

Runs where a comparison is judged, called by gradients.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.changed_gradients import are_right, why_changed
from distlab.comparison.judging.forward_passes import (
    lines_of_backward,
    losses_of,
    rows_of,
    unequal_weights,
)
from distlab.comparison.judging.mixtures import (
    bound_of,
    find_weights,
    own_gradients_of,
    own_gradients_of_reference,
)
from distlab.comparison.judging.other_losses import losses_in_words, why_other_loss
from distlab.comparison.judging.pairs import Numbers, Pair
from distlab.comparison.judging.tolerances import exceeds
from distlab.comparison.judging.wholes import weighted_mean
from distlab.comparison.judging.wording import listed, name_list, number

ALMOST = 1e-3  # relative difference of losses that are taken for equal


# --- means of unequal parts ---


def find_unequal_parts(numbers: Numbers, step: int) -> Finding | None:
    """The finding that weights by tokens, or by rows, would make the gradient right."""
    for noun, weights in unequal_weights(numbers.world, step).items():
        proof = _weighted_gradients(numbers, step, weights, noun)
        proof = proof or _weighted_losses(numbers, step, weights, noun)
        if proof:
            return _unequal(numbers, step, weights, noun, proof)
    return None


def _weighted_gradients(
    numbers: Numbers, step: int, weights: Mapping[int, float], noun: str
) -> str:
    """The proof by the ranks' own gradients; "" if it fails."""
    if not _own_mean_is_right(numbers, step, weights):
        return ""
    return (
        f"Weighted by their {noun}, the ranks' own gradients would be that of one process; their "
        "plain mean is not."
    )


def _own_mean_is_right(
    numbers: Numbers, step: int, weights: Mapping[int, float] | None = None
) -> bool:
    """Whether the mean of the ranks' own gradients is that of one process; False if not seen."""
    tried = 0
    for name, pair in numbers.gradients(step).items():
        own = weighted_mean(numbers.world.steps[step][name].own_gradients(), weights)
        if own is None:
            continue
        tried += 1
        if exceeds((own - pair.expected).norm, pair.bound):
            return False
    return tried > 0


def _weighted_losses(numbers: Numbers, step: int, weights: Mapping[int, float], noun: str) -> str:
    """The proof by the losses, where every rank made one backward pass; "" if it fails."""
    losses = losses_of(numbers.world, step)
    expected = losses_of(numbers.reference, step)
    if len(expected) != 1 or len(losses) < 2 or set(losses) != set(weights):
        return ""
    (right,) = expected.values()
    plain = sum(losses.values()) / len(losses)
    weighted = sum(losses[rank] * weights[rank] for rank in losses) / sum(weights.values())
    if not abs(weighted - right) <= ALMOST * abs(plain - right):
        return ""
    return (
        f"The mean of the ranks' losses is {number(plain, 4)}, and weighted by their {noun} it "
        f"would be {number(weighted, 4)}, as in one process."
    )


def _unequal(
    numbers: Numbers, step: int, weights: Mapping[int, float], noun: str, proof: str
) -> Finding:
    counts = listed([f"{round(weights[rank]):,}" for rank in sorted(weights)])
    sentence = (
        f"The gradient is a mean of means over unequal parts: in step {step} the ranks have "
        f"{counts} {noun}."
    )
    advice = (
        f"Add up the losses of a rank, divide by the number of {noun} of all ranks, which "
        "all_reduce counts, and multiply by world_size if DistributedDataParallel averages."
    )
    return Finding(
        Cause.UNEQUAL_PARTS,
        sentence,
        (proof, advice),
        numbers.world.size,
        step,
        tuple(numbers.gradients(step)),
        lines=lines_of_backward(numbers.world, step),
    )


def _hidden_weights(numbers: Numbers, step: int) -> Finding | None:
    """The finding that other weights of the ranks, which nothing shows, would make it right."""
    own = own_gradients_of(numbers, step)
    if not own or are_right(numbers, step, own):
        return None
    right = own_gradients_of_reference(numbers, step)
    bounds = {name: bound_of(numbers, step, name, right[name]) for name in own}
    weights = find_weights(right, own, bounds)
    if weights is None or min(weights.values()) < 0:
        return None
    words = listed([number(weight, 3) for weight in weights.values()])
    sentence = (
        f"The gradient is a mean of means over unequal parts: in step {step} the ranks' own "
        f"gradients, times {words}, add up to that of one process."
    )
    advice = (
        "Usual reasons: each rank divides by a number of its own, such as its tokens with padding, "
        "or the sum of its rows' weights. Divide by the sum over all ranks, which all_reduce "
        "gives, and multiply by world_size if DistributedDataParallel averages."
    )
    return Finding(
        Cause.UNEQUAL_PARTS,
        sentence,
        (advice,),
        numbers.world.size,
        step,
        tuple(numbers.gradients(step)),
        lines=lines_of_backward(numbers.world, step),
    )


# --- anything else ---


def find_other_gradient(numbers: Numbers, step: int, wrong: Mapping[str, Pair]) -> Finding:
    """The finding that the gradient is another one, with all that is known of it."""
    missing = _without_gradient(numbers, step, wrong)
    if missing:
        verb = "has" if len(missing) == 1 else "have"
        sentence = (
            f"The gradient is another one than in one process: in step {step} "
            f"{name_list(missing)} {verb} no gradient on the ranks."
        )
        details = [
            "Look for requires_grad=False, detach() or no_grad(), a tensor that was received "
            "from another rank, or a parameter that was replaced."
        ]
        return _finding(numbers, step, missing, sentence, details)
    weighted = _hidden_weights(numbers, step)
    if weighted is not None:
        return weighted
    why, details = _why(numbers, step)
    whom = "every parameter"
    if len(wrong) < len(numbers.gradients(step)):
        whom = name_list(list(wrong))
    losses = losses_in_words(numbers, step)
    what = "The gradient is another one"
    if losses:
        what = "The gradient and the loss are others"
    sentence = f"{what} than in one process, from step {step} on, for {whom}{why}."
    details = [_size_in_words(wrong), *losses, *details]
    return _finding(numbers, step, tuple(wrong), sentence, details)


def find_scaled_parts(numbers: Numbers, step: int, wrong: Mapping[str, Pair]) -> Finding | None:
    """The finding that each rank scales its own part, which an optimizer may hide."""
    return find_other_gradient(numbers, step, wrong) if _scales_of_pieces(numbers, step) else None


def _finding(
    numbers: Numbers, step: int, names: tuple[str, ...], sentence: str, details: list[str]
) -> Finding:
    return Finding(
        Cause.GRADIENT_DIFFERS,
        sentence,
        tuple(details),
        numbers.world.size,
        step,
        names,
        lines=lines_of_backward(numbers.world, step),
    )


def _without_gradient(numbers: Numbers, step: int, wrong: Mapping[str, Pair]) -> tuple[str, ...]:
    """Parameters that have a gradient in one process, and none on any rank; or one of 0."""
    missing = [name for name, pair in wrong.items() if not pair.found.norm]
    return tuple(missing)


def _size_in_words(wrong: Mapping[str, Pair]) -> str:
    """By how much the gradient that differs most, relative to its bound, differs."""

    def excess(name: str) -> float:
        return wrong[name].distance / (wrong[name].bound or 1.0)

    name = max(wrong, key=excess)
    pair = wrong[name]
    norm = pair.expected.norm or 1.0
    return (
        f"That of {name} differs by {number(pair.distance / norm)} of its norm, and rounding "
        f"explains up to {number(pair.bound / norm, 1)}."
    )


def _why(numbers: Numbers, step: int) -> tuple[str, list[str]]:
    """What is known of the reason: words for the sentence, and further sentences."""
    scales = _scales_of_pieces(numbers, step)
    if scales:
        words = ", ".join(f"{number(scale, 3)} on rank {rank}" for rank, scale in scales.items())
        return ", because each rank clips or scales its own part", [
            f"The parts are multiplied by {words}.",
            "Usual reasons: gradients are clipped by the norm of the rank's own shards, or a "
            "number is taken from a DTensor with item() or to_local(), which is the rank's part. "
            "Use torch.nn.utils.clip_grad_norm_ on DTensors, and full_tensor() for numbers.",
        ]
    owner = _owner(numbers, step)
    if owner is not None:
        return f", because every rank has that of rank {owner} alone", [
            "Usual reason: broadcast in the place of all_reduce."
        ]
    if _have_other_rows(numbers, step):
        return ", although ranks that hold parts of one layer need the same rows", [
            "Tensor-parallel ranks each compute a part of every row: give all of them the same "
            "batch, and divide rows only between groups that have the whole model."
        ]
    own = own_gradients_of(numbers, step)
    if own and are_right(numbers, step, own):
        return why_changed(numbers, step, own)
    return why_other_loss(numbers, step, bool(own))


def _scales_of_pieces(numbers: Numbers, step: int) -> dict[int, float]:
    """The factor of each rank's pieces, if every rank has one, and not all the same; else {}."""
    scales: dict[int, list[float]] = {}
    for name, pair in numbers.gradients(step).items():
        copies = numbers.world.steps[step][name]
        if not copies.is_in_pieces or not pair.expected.is_whole:
            continue
        for rank, sketch in copies.sketches("gradient", sorted(copies.by_rank)).items():
            held = sketch.sums != 0
            right = pair.expected.sums[held]
            size = float(right @ right)
            if not size:
                continue
            scale = float(sketch.sums[held] @ right) / size
            rest = float(((sketch.sums[held] - scale * right) ** 2).sum()) ** 0.5
            if exceeds(rest, 2 * pair.bound):
                return {}
            if size**0.5 > 100 * pair.bound:
                scales.setdefault(rank, []).append(scale)
    found = {rank: sorted(some)[len(some) // 2] for rank, some in sorted(scales.items())}
    for rank, some in scales.items():
        if max(some) - min(some) > 0.02 * abs(found[rank]):
            return {}
    is_one = len(found) < 2 or max(found.values()) - min(found.values()) < 1e-3
    return {} if is_one else found


def _owner(numbers: Numbers, step: int) -> int | None:
    """The rank whose own gradient all ranks have, if there is one."""
    pairs = numbers.gradients(step)
    if not pairs or numbers.world.size < 2:
        return None
    owners = []
    for rank in range(numbers.world.size):
        for name, pair in pairs.items():
            own = numbers.world.steps[step][name].own_gradients().get(rank)
            if own is None or exceeds((pair.found - own).norm, pair.bound):
                break
        else:
            owners.append(rank)
    # if several have it, they computed the same
    return owners[0] if len(owners) == 1 else None


def _have_other_rows(numbers: Numbers, step: int) -> bool:
    """Whether the ranks of one model have different rows."""
    if not numbers.world.is_model_parallel:
        return False
    rows = [tuple(sorted(rows_of(record, step))) for record in numbers.world.records]
    return all(rows) and len(set(rows)) == len(rows)
