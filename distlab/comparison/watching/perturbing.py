"""Parameters and rows that are changed by a unit of rounding, to see what rounding may change.

Runs on every rank; called by watch.py, forwards.py and steps.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from distlab.comparison.watching.places import Places
from distlab.comparison.watching.seen_tensors import has_values, places_of
from distlab.comparison.watching.sketches import BLOCK, signs_at, signs_of_block
from distlab.comparison.watching.state import Watching
from distlab.compat import torch_watching as private


class Perturbation:
    """Multiplies numbers by 1 + epsilon or 1 - epsilon, at random."""

    def __init__(self, watching: Watching, number: int) -> None:
        self._watching = watching
        self._salt = number
        self._changed: set[int] = set()  # parameters, by id
        self._kept: list[torch.Tensor] = []  # so that no other object gets the same id

    def perturb(
        self,
        module: nn.Module,
        data: torch.Tensor | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Change the parameters of an outermost module when it is first called, and its rows.

        Returns:
            The arguments with other rows in the place of the data.
        """
        for parameter in module.parameters():
            self.change_parameter(parameter)
        if data is None or not data.is_floating_point():
            return args, kwargs
        other = data.detach().clone()
        self._change(other)
        return _replaced(args, data, other), _replaced(kwargs, data, other)

    def change_parameter(self, parameter: torch.Tensor) -> None:
        """Change a parameter, unless that was done before."""
        if id(parameter) in self._changed or not has_values(parameter):
            return
        self._changed.add(id(parameter))
        self._kept.append(parameter)
        self._change(parameter)

    @torch.no_grad()
    def _change(self, tensor: torch.Tensor) -> None:
        """Multiply each element by (1 + epsilon) or (1 - epsilon), in place."""
        if not tensor.is_floating_point():
            return
        self._salt += 1
        places = places_of(tensor)
        # by .data: the program may have used the parameter already, and autograd would refuse that
        own = private.own_part(tensor).data
        flat = own.contiguous().view(-1)
        for first in range(0, flat.numel(), BLOCK):
            part = flat[first : first + BLOCK]
            signs = self._signs(places, first, first + len(part)).to(part.device)
            part.copy_(part * (1 + self._watching.epsilon * signs))
        if own.data_ptr() != flat.data_ptr():
            own.copy_(flat.view(own.shape))

    def _signs(self, places: Places, first: int, last: int) -> torch.Tensor:
        """Of this rank's elements number first to last - 1: the same on every rank."""
        salt = self._salt * 101
        if places.start == 0 and first % BLOCK == 0:
            return signs_of_block(first // BLOCK, salt)[: last - first]
        return signs_at(places.positions(first, last), salt)


def _replaced(arguments: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """Arguments with another tensor in the place of one, also in tuples, lists and dicts."""
    if arguments is old:
        return new
    if type(arguments) is dict:
        return {name: _replaced(value, old, new) for name, value in arguments.items()}
    if type(arguments) in (tuple, list):
        return type(arguments)(_replaced(value, old, new) for value in arguments)
    return arguments
