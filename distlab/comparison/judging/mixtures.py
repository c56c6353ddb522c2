"""What step() got, as a mixture of the gradients that the ranks' own backward passes gave.

Runs where a comparison is judged, called by changed_gradients.py and other_gradients.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distlab.comparison.judging.pairs import Numbers, Pair
from distlab.comparison.judging.tolerances import exceeds
from distlab.comparison.judging.wholes import Copies, weighted_mean
from distlab.comparison.records import Sketch

BY_NAME = Mapping[str, Sketch]
OWN = Mapping[str, Mapping[int, Sketch]]  # by the parameter's name, and by rank
ALIKE = 1e8  # condition of the products of gradients that are too similar to be told apart
PLENTY = 3  # numbers for each unknown weight, at least


def own_gradients_of(numbers: Numbers, step: int) -> OWN:
    """What every rank's backward passes gave to each parameter; {} if that is not known of all.

    A rank of a tensor-parallel model has the gradient of its part only, which is no summand of the
    gradient of the whole parameter.
    """
    own = {}
    for name, pair in numbers.gradients(step).items():
        copies = numbers.world.steps[step][name]
        seen = copies.own_gradients()
        if not seen and not pair.expected.norm:
            continue
        if len(seen) < numbers.world.size:
            return {}
        if copies.is_in_pieces and _are_of_parts(copies, seen, numbers.world.is_model_parallel):
            return {}
        own[name] = seen
    return own


def _are_of_parts(copies: Copies, own: Mapping[int, Sketch], is_model_parallel: bool) -> bool:
    """Whether each rank has the gradient of its part of the parameter only.

    A sketch of random sums does not show which elements it is of.
    """
    for rank, sketch in own.items():
        if not sketch.is_whole:
            return is_model_parallel
        held = copies.by_rank[rank].value.sums != 0
        if sketch.sums[~held].any():
            return False
    return True


def own_gradients_of_reference(numbers: Numbers, step: int) -> dict[str, Sketch]:
    """What backward passes gave in one process, or what step() got where that was not looked at."""
    found = {}
    for name, pair in numbers.gradients(step).items():
        own = weighted_mean(numbers.reference.steps[step][name].own_gradients())
        found[name] = pair.expected if own is None else own
    return found


def mean_pairs(numbers: Numbers, step: int, own: OWN) -> dict[str, Pair]:
    """The mean of the ranks' own gradients, beside what backward passes gave in one process."""
    pairs = {}
    right = own_gradients_of_reference(numbers, step)
    for name, seen in own.items():
        mean = weighted_mean(seen)
        if mean is not None:
            pairs[name] = Pair(right[name], mean, bound_of(numbers, step, name, right[name]))
    return pairs


def bound_of(numbers: Numbers, step: int, name: str, sketch: Sketch) -> float:
    """What rounding may change in a gradient, which may be larger than the one that step() got."""
    pair = numbers.gradients(step)[name]
    return pair.bound * max(1.0, sketch.norm / (pair.expected.norm or 1.0))


def find_weights(
    targets: BY_NAME, own: OWN, bounds: Mapping[str, float]
) -> dict[int, float] | None:
    """Numbers, one for each rank, by which the ranks' own gradients add up to the targets.

    They are found by least squares, and must explain every parameter.

    Args:
        targets: gradients by the parameter's name.
        own: what each rank has of them.
        bounds: what rounding may change in each.

    Returns:
        The weights by rank, or None if there are none, or more than one choice.
    """
    ranks = sorted({rank for seen in own.values() for rank in seen})
    products = np.zeros((len(ranks), len(ranks)))
    with_target = np.zeros(len(ranks))
    elements = 0
    for name, seen in own.items():
        scale = 1 / (bounds[name] or 1.0)
        columns = np.stack([seen[rank].sums for rank in ranks], axis=1) * scale
        products += columns.T @ columns
        with_target += columns.T @ (targets[name].sums * scale)
        elements += len(columns)
    if elements < PLENTY * len(ranks) or not np.isfinite(products).all():
        return None
    if np.linalg.cond(products) > ALIKE:
        return None
    solution = np.linalg.solve(products, with_target)
    weights = {rank: float(weight) for rank, weight in zip(ranks, solution, strict=True)}
    if all(_is_sum(targets[name], seen, weights, bounds[name]) for name, seen in own.items()):
        return weights
    return None


def _is_sum(
    target: Sketch, own: Mapping[int, Sketch], weights: Mapping[int, float], bound: float
) -> bool:
    rest = target
    for rank, sketch in own.items():
        rest = rest - sketch.scaled(weights[rank])
    largest = max(abs(weight) for weight in weights.values())
    return not exceeds(rest.norm, bound * max(1.0, len(weights) * largest))


MOSTLY = 0.75  # of squares, which a factor must explain


def find_multiple(differences: BY_NAME, of: BY_NAME, bounds: Mapping[str, float]) -> float | None:
    """The one number by which all differences are multiples of others; None without one."""
    size = 0.0
    product = 0.0
    total = 0.0
    for name, difference in differences.items():
        if name not in of:
            return None
        scale = 1 / (bounds[name] or 1.0)
        size += of[name].dot(of[name]) * scale**2
        product += difference.dot(of[name]) * scale**2
        total += difference.dot(difference) * scale**2
    if not size or not np.isfinite(size):
        return None
    factor = product / size
    if not factor * product > MOSTLY * total:  # it explains little of the differences
        return None
    for name, difference in differences.items():
        rest = (difference - of[name].scaled(factor)).norm
        if exceeds(rest, bounds[name] * max(1.0, abs(factor))):
            return None
    return factor
