"""The names of parameters: as the outermost module that was called has them.

Runs on every rank; called by state.py and called_modules.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

# parts of names that wrappers add: DDP, torch.compile, FSDP, activation checkpointing
_OF_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def plain_name(name: str) -> str:
    """The name of a parameter or a module without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in _OF_WRAPPERS)


class Naming:
    """Which name each parameter has; known for certain only when the program has ended.

    A model may be called layer by layer first, and as a whole later: the longest name is taken. An
    unsharded parameter of FSDP has the name of the sharded one.

    Attributes:
        parameters: all that have a name, by their id; as they are kept, no other gets the same id.
    """

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, str]] = {}  # of a parameter: module and name there
        self._strangers: dict[int, str] = {}
        self.parameters: dict[int, torch.Tensor] = {}
        self._roots: dict[int, nn.Module] = {}  # kept, so that no other gets the same id

    def add_module(self, module: nn.Module) -> None:
        """Name the parameters of an outermost module that is called."""
        root = without_wrappers(module)
        self._roots[id(root)] = root
        for name, parameter in module.named_parameters():
            if not parameter.is_leaf:  # computed from others, as by torch.func.functional_call
                continue
            plain = plain_name(name)
            known = self._places.get(id(parameter))
            if known is None:
                self.parameters[id(parameter)] = parameter
            elif len(known[1]) >= len(plain):
                continue
            self._places[id(parameter)] = (id(root), plain)

    def add_part(self, module: nn.Module, part: object, name: str) -> None:
        """Name a part of a flat parameter; known by the id of an object that is kept elsewhere."""
        root = without_wrappers(module)
        self._places[id(part)] = (id(root), plain_name(name))

    def add_stranger(self, parameter: torch.Tensor, name: str) -> None:
        """Name a parameter that is in no module that was called so far."""
        if id(parameter) not in self._strangers:
            self.parameters[id(parameter)] = parameter
            self._strangers[id(parameter)] = name

    def is_stranger(self, parameter: torch.Tensor) -> bool:
        """Whether it is in no module that was called so far."""
        return id(parameter) not in self._places

    def other_parameters(self, stepped: set[int]) -> Iterator[torch.Tensor]:
        """The trainable parameters of modules that are not among these, by id."""
        places = {self._places.get(key) for key in stepped}
        for key, parameter in self.parameters.items():
            place = self._places.get(key)
            if place is not None and place not in places and parameter.requires_grad:
                yield parameter

    def names(self) -> dict[int, str]:
        """The names of all parameters, by their id. No two parameters have the same one."""
        taken: dict[str, int] = {}  # how often
        named: dict[tuple[int, str], str] = {}
        names = {}
        for key, place in self._places.items():
            if place not in named:
                named[place] = _free_name(place[1], taken)
            names[key] = named[place]
        for key, name in self._strangers.items():
            if key not in names:
                names[key] = _free_name(name, taken)
        return names


def _free_name(name: str, taken: dict[str, int]) -> str:
    number = taken.get(name, 0) + 1
    taken[name] = number
    return name if number == 1 else f"{name} ({number})"


def without_wrappers(module: nn.Module) -> nn.Module:
    """The module inside of DDP and of torch.compile."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner
