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
        if isinstance(obj, type) and _is_local(obj):
            return pickle.loads, (cloudpickle.dumps(obj),)
        if isinstance(obj, types.FunctionType) and (_is_local(obj) or obj.__module__ == "__main__"):
            stream = io.BytesIO()
            _ByValue(stream).dump(obj)
            return pickle.loads, (stream.getvalue(),)
        return NotImplemented


def _is_local(obj: Any) -> bool:
    return "<locals>" in getattr(obj, "__qualname__", "")


class _ByValue(cloudpickle.Pickler):
    """cloudpickle, with the callee's own namespace in the place of the one that a function was written in."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "__main__" and not _is_local(obj):
            return NotImplemented
        if not isinstance(obj, types.FunctionType):
            return super().reducer_override(obj)
        self.globals_ref[id(obj.__globals__)] = _Namespace()
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple):  # one that can be imported
            return reduced
        make, arguments, (state, slots), items, pairs, set_state = reduced
        code = {name: value for name, value in slots["__globals__"].items() if isinstance(value, CODE)}
        slots = {**slots, "__globals__": {}}
        return make, arguments, (state, slots, code, set_state), items, pairs, _complete


class _Namespace:
    """Stands for the __main__ of the rank that unpickles it."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple]:
        return _namespace, ()


def _namespace() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def _complete(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Give a function its attributes, and its namespace the code that it uses and the namespace lacks."""
    attributes, slots, code, set_state = state
    for name, value in code.items():
        function.__globals__.setdefault(name, value)
    set_state(function, (attributes, slots))
