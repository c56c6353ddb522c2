"""What has run on the ranks of a cluster, in order, remembered so that it can be written down as a script.

Runs on the notebook's kernel: cluster.py and magics.py note each cell, call and push; drafting.py reads the notes. A
note keeps no tensor alive: of values it has only what can be written into a script.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

from distlab import rewriting
from distlab.source import is_learners

MOST_ELEMENTS, LONGEST_TEXT = 32, 200  # of a value that is written into a script as it stands


@dataclass(frozen=True)
class Value:
    """A value that the notebook sent, as far as a script can have it.

    Args:
        kind: its type's name.
        text: an expression that makes it; "" when there is none, as for a tensor.
        line: the import that `text` needs; "" when it needs none.
        code: of a function, or of a method of a class, that a person has written; its source defines the value.
        owner: the name of that class.
        names: what the source uses of its notebook; None where another value of the same step tells it.
    """

    kind: str
    text: str = ""
    line: str = ""
    code: CodeType | None = None
    owner: str = ""
    names: Mapping[str, Value] | None = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One thing that was done on `ranks`: a %%px cell, a call by cluster.run, or a push.

    Args:
        source: the cell. fn, args, kwargs: the call. names: what was pushed.
        first: arguments of the call that come before rank and world_size, as those of functools.partial do.
        failed: the name of the error that it ended with; "" when it ended well.
        pending: the AsyncResult of a cell that was sent with --noblock, and so has not ended here.
        waited: whether the notebook waited for its end before it did anything else.
    """

    kind: str
    ranks: tuple[int, ...]
    source: str = ""
    fn: Value | None = None
    first: tuple[Value, ...] = ()
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    names: Mapping[str, Value] = field(default_factory=dict)
    failed: str = ""
    pending: Any = None
    waited: bool = True


@contextlib.contextmanager
def noting(steps: list[Step], step: Step) -> Iterator[None]:
    """Add the step to the steps when what it does has ended, with the error that it ended with."""
    try:
        yield
    except BaseException as error:
        steps.append(replace(step, failed=type(error).__name__))
        raise
    steps.append(step)


def call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], ranks: Sequence[int]) -> Step:
    """The step of cluster.run(fn, *args, **kwargs)."""
    first: tuple[Any, ...] = ()
    if isinstance(fn, functools.partial):
        fn, first, kwargs = fn.func, fn.args, {**fn.keywords, **kwargs}
    seen: set[CodeType] = set()
    function = value_of(fn, seen)  # first, as in the script, where names come with the first value that needs them
    before, after = (tuple(value_of(value, seen) for value in values) for values in (first, args))
    named = {name: value_of(value, seen) for name, value in kwargs.items()}
    return Step("run", tuple(ranks), fn=function, first=before, args=after, kwargs=named)


def push(names: Mapping[str, Any], ranks: Sequence[int]) -> Step:
    """The step of cluster.push(names)."""
    return Step("push", tuple(ranks), names={name: value_of(value) for name, value in names.items()})


def value_of(value: Any, seen: set[CodeType] | None = None) -> Value:
    """What a script can have of a value.

    Args:
        seen: functions whose names are described already, since functions use each other; it grows.
    """
    seen = set() if seen is None else seen
    kind = type(value).__name__
    if isinstance(value, ModuleType):
        name = value.__name__
        return Value(kind, name.rpartition(".")[2], f"import {name}" if "." not in name else _from(name))
    if callable(value):
        function = _own_function(value)
        if function is None:
            return _importable(value, kind)
        owner = value.__name__ if isinstance(value, type) else ""
        made = Value(kind, value.__name__, "", function.__code__, owner)
        source = rewriting.source_of(made)
        wrapped_later = function is not value and not owner and not source.startswith("@")
        if wrapped_later or (made.text == "<lambda>" and not source):
            return Value(kind)
        if function.__code__ in seen:
            return replace(made, names=None)
        seen.add(function.__code__)
        return replace(made, names=_used(value, source, seen))
    return Value(kind, literal(value))


def literal(value: Any, depth: int = 3) -> str:
    """A Python expression of a number, text or small container of them; "" for anything else."""
    if value is None or type(value) in (bool, int, str, bytes):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**50 else ""
    elif type(value) is float:
        text = repr(value) if math.isfinite(value) else f"float('{value}')"
    elif depth and type(value) in (list, tuple, dict) and len(value) <= MOST_ELEMENTS:
        parts = [literal(part, depth - 1) for part in (sum(value.items(), ()) if type(value) is dict else value)]
        if not all(parts):
            return ""
        pairs = ", ".join(f"{k}: {v}" for k, v in zip(parts[::2], parts[1::2], strict=False))
        several = ", ".join(parts) + ("," if type(value) is tuple and len(parts) == 1 else "")
        text = {list: f"[{several}]", tuple: f"({several})", dict: f"{{{pairs}}}"}[type(value)]
    else:
        return ""
    return text if len(text) <= LONGEST_TEXT else ""


def _own_function(value: Any) -> FunctionType | None:
    """A function that a person wrote, without its decorators, or one method of such a class."""
    functions = [value]
    if isinstance(value, type):
        functions = _methods(value) if value.__module__ == "__main__" else []
    own = (function for function in map(_undecorated, functions) if isinstance(function, FunctionType))
    return next((function for function in own if is_learners(function.__code__.co_filename)), None)


def _undecorated(function: Any) -> Any:
    """The function that functools.wraps has noted, inside of every decorator."""
    while "__wrapped__" in getattr(function, "__dict__", ()):
        function = function.__wrapped__
    return function


def _methods(owner: type) -> list[Any]:
    """The functions in a class, also those of its static and class methods and its properties."""
    members = vars(owner).values()
    return [getattr(member, "__func__", None) or getattr(member, "fget", None) or member for member in members]


def _importable(value: Any, kind: str) -> Value:
    """A function or class of an installed package, by its name there."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    home = sys.modules.get(module or "")
    if home is None or module == "__main__" or not name or getattr(home, name, None) is not value:
        return Value(kind)
    return Value(kind, name, "" if module == "builtins" else f"from {module} import {name}")


def _used(value: Any, source: str, seen: set[CodeType]) -> dict[str, Value]:
    """The names of its notebook that a function or class uses, and those of the function around it."""
    own: dict[str, Any] = {}
    for function in _methods(value) if isinstance(value, type) else [value]:
        inner = _undecorated(function)
        if isinstance(inner, FunctionType):
            own = inner.__globals__ | own | _around(inner)
    wanted = sorted(name for name in rewriting.global_names(source) if name in own and not name.startswith("__"))
    return {name: value_of(own[name], seen) for name in wanted}


def _around(function: FunctionType) -> dict[str, Any]:
    """The variables of the function around it that have a value."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it has none yet
            found[name] = cell.cell_contents
    return found


def _from(name: str) -> str:
    package, _, last = name.rpartition(".")
    return f"from {package} import {last}"
