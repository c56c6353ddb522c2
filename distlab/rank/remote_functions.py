"""How functions of a cell travel in a remote call: their code by value, with the variables of the rank that runs them.

Runs on every rank; torch pickles a remote call with `Pickler`. A function that was written in a cell runs on the callee
as the caller has it, and finds the callee's variables. Functions, classes and modules that it uses come along where the
callee has none of that name; other values do not. A class goes by its name, so that it is one class on all ranks.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import cloudpickle

CODE = (types.FunctionType, type, types.ModuleType)


class Pickler(pickle.Pickler):
    """pickle's, but functions of a cell, and what no name leads to, travel by value."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, (types.FunctionType, type)) or _has_name(obj):
            return NotImplemented
        stream = io.BytesIO()
        _ByValue(stream).dump(obj)
        return pickle.loads, (stream.getvalue(),)


def _has_name(obj: Any) -> bool:
    """Whether a function or a class goes by its name: the callee finds it, or is meant to have its own."""
    if obj.__module__ == "__main__" and "<locals>" not in obj.__qualname__:
        return isinstance(obj, type)
    found: Any = sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


class _ByValue(cloudpickle.Pickler):
    """cloudpickle, but a function of a cell gets the callee's own namespace in the place of the caller's."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and _has_name(obj):
            return NotImplemented
        if not isinstance(obj, types.FunctionType):
            return super().reducer_override(obj)
        main = vars(sys.modules["__main__"])
        of_cell = obj.__globals__ is main
        if of_cell:
            self.globals_ref[id(main)] = _Namespace()
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple):  # one that can be imported
            return reduced
        make, arguments, (state, slots), items, pairs, set_state = reduced
        used = slots["__globals__"]
        if of_cell:
            come = {name: value for name, value in used.items() if isinstance(value, CODE)}
        else:  # it came by value itself: what this rank lent it, the callee lends it, too
            come = {name: value for name, value in used.items() if value is not main.get(name)}
        slots = {**slots, "__globals__": {}}
        return make, arguments, (state, slots, come, set_state), items, pairs, _complete


class _Namespace:
    """Stands for the __main__ of the rank that unpickles it."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple]:
        return _namespace, ()


def _namespace() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def _complete(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Give a function its attributes, what came with it where its namespace lacks that, and this rank's names."""
    attributes, slots, come, set_state = state
    for name, value in come.items():
        function.__globals__.setdefault(name, value)
    set_state(function, (attributes, slots))
    for name, value in _namespace().items():
        function.__globals__.setdefault(name, value)
