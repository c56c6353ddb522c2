"""What each backward pass gave to a parameter on this rank, before anything averaged it.

Runs on every rank; called by watch.py, called_modules.py and steps.py.

A hook of a leaf tensor is called before the gradient is added to others, and so before DDP or FSDP
does anything with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from distlab.comparison.records import Sketch
from distlab.comparison.watching.seen_tensors import has_values, sketched
from distlab.comparison.watching.state import Watching
from distlab.compat import torch_watching as private


class OwnGradients:
    """Adds up what backward passes give, by parameter, until a step takes it."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._sums: dict[int, Sketch] = {}  # by the id of a parameter
        self._hooked: set[int] = set()  # ids of parameters and of modules
        self._kept: list[object] = []  # so that no other object gets the same id

    def look_into(self, module: nn.Module) -> None:
        """Look at the parameters of a module that is called."""
        if not self._watching.options.detailed:
            return
        for inner in module.modules():
            for parameter in inner.parameters(recurse=False):
                if private.is_dtensor(parameter):
                    self._look_at_unsharded(inner)
                self.look_at(parameter, parameter)

    def look_at(self, parameter: torch.Tensor, known_as: torch.Tensor) -> None:
        """Look at a parameter that may be the unsharded form of one that the optimizer knows."""
        if id(parameter) in self._hooked or not self._watching.options.detailed:
            return
        if not parameter.is_leaf or not parameter.requires_grad or not has_values(parameter):
            return
        self._hooked.add(id(parameter))
        self._kept.append(parameter)
        key = id(known_as)

        def add(gradient: torch.Tensor) -> None:
            if not torch.compiler.is_compiling():
                self._add(key, gradient)

        self._watching.patches.on_end(parameter.register_hook(add).remove)

    def take(self, parameter: torch.Tensor) -> Sketch | None:
        """What backward passes gave to a parameter since this was called last."""
        return self._sums.pop(id(parameter), None)

    def _look_at_unsharded(self, module: nn.Module) -> None:
        """FSDP puts a whole parameter in the place of a sharded one, when it calls a module."""
        if id(module) in self._hooked:
            return
        self._hooked.add(id(module))
        self._kept.append(module)
        sharded = dict(module.named_parameters(recurse=False))

        def before(module: nn.Module, args: Any) -> None:
            if torch.compiler.is_compiling():
                return
            for name, parameter in module.named_parameters(recurse=False):
                if name in sharded and parameter is not sharded[name]:
                    self.look_at(parameter, sharded[name])

        self._watching.patches.on_end(module.register_forward_pre_hook(before).remove)

    def _add(self, key: int, gradient: torch.Tensor) -> None:
        with self._watching.careful("a rank's own gradient"):
            sketch = sketched(gradient)
            before = self._sums.get(key)
            self._sums[key] = sketch if before is None else before + sketch
