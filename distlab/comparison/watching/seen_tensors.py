"""What the record has of a tensor of this rank: its places, and sketches of values and gradients.

Runs on every rank; called by state.py, steps.py, own_gradients.py and perturbing.py.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from distlab.comparison.records import MOST_SUMS, SeenParameter, Sketch
from distlab.comparison.watching.places import Places, whole
from distlab.comparison.watching.sketches import sketch_of
from distlab.compat import torch_watching as private


def has_values(parameter: torch.Tensor) -> bool:
    """Whether a parameter has numbers: it is not on the meta device, nor still to be made."""
    return not is_lazy(parameter) and private.has_storage(parameter)


def places_of(tensor: torch.Tensor) -> Places:
    """Which elements of a tensor this rank has."""
    if private.is_dtensor(tensor):
        return Places(tuple(tensor.shape), private.own_indices(tensor))
    shape = tuple(tensor.shape)
    if tensor.is_complex():
        shape = (*shape, 2)
    return whole(shape)


def sketched(tensor: torch.Tensor) -> Sketch:
    """The sketch of what this rank has of a tensor."""
    return sketch_of(private.own_part(tensor), places_of(tensor))


def seen_gradient(parameter: torch.Tensor) -> tuple[Sketch, bool]:
    """The sketch of a gradient, of the elements that this rank has of its parameter.

    Returns:
        sketch: of all elements that it has here, if it is partial or lacks some of the parameter's.
        is_partial: whether it is a summand of the gradient, instead of a part.
    """
    gradient = parameter.grad
    assert gradient is not None
    own = private.own_part(gradient)
    places = places_of(gradient)
    if not private.is_dtensor(gradient) or not private.is_dtensor(parameter):
        return sketch_of(own, places), False
    wanted = places_of(parameter)
    if wanted.piece == places.piece and not private.is_partial(gradient):
        return sketch_of(own, places), False
    numbers = places.numbers_of(wanted)
    if numbers is None or private.is_partial(gradient):
        return sketch_of(own, places), True
    for dimension, along in enumerate(numbers):
        own = own.index_select(dimension, along.to(own.device))
    return sketch_of(own, wanted), False


def seen(parameter: torch.Tensor) -> SeenParameter:
    """A parameter with the value that it has now; with zeros if that cannot be read."""
    places = places_of(parameter)
    if not has_values(parameter):
        elements = min(places.elements, MOST_SUMS)
        nothing = Sketch(np.zeros(elements), places.elements)
        return SeenParameter(tuple(parameter.shape), places.piece, nothing)
    value = sketch_of(private.own_part(parameter), places)
    return SeenParameter(tuple(parameter.shape), places.piece, value)
