"""How attributes and functions of torch are replaced.

Called by all that changes torch for a recording, such as torch_changed.py.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch.utils._python_dispatch import _disable_current_modes

Function = Callable[..., Any]


class Patch(NamedTuple):
    """Another value for an attribute of a class or a module."""

    owner: Any
    name: str
    value: Any


def put(owner: Any, name: str, value: Any) -> None:
    """Give an object of torch another attribute, which type checkers do not allow by assignment."""
    setattr(owner, name, value)


def replace(function: Function, other: Function) -> None:
    """Put another function in its place, in each module that has it."""
    name = function.__name__
    for module in list(sys.modules.values()):
        if getattr(module, name, None) is function:
            setattr(module, name, other)


def replace_all(functions: Iterable[tuple[Function, Function]]) -> None:
    """Put others in the places of functions of torch, in each module that has them."""
    for function, other in functions:
        replace(function, other)


def with_data(function: Function) -> Function:
    """Have a function compute with real numbers, as meshes of ranks and samplers must."""
    return _disable_current_modes()(function)


def do_nothing(*_: Any, **__: Any) -> None:
    """Stand in for a check or a write that needs data."""
