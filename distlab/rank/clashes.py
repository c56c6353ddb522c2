"""Names that a function from the notebook uses, and that have another value on this rank.

The function has the notebook's value, so a learner who meant the rank's own has to be told. Runs on
every rank, called by entry.py. What cannot be compared counts as the same: a false alarm is worse.
"""

import sys
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from distlab.wire.namespace import globals_brought_by, namespace_of_cells

Clash = tuple[str, int]  # a name, and a mark that another value of this rank does not have
MOST_NUMBERS = 10_000_000  # of a tensor that is compared
PLAIN = (bool, int, float, complex, str, bytes, type(None))
# by name, the mark of the value that a push has left here: its owner knows of both
_PUSHED: dict[str, int] = {}


def note_pushed(values: Mapping[str, Any]) -> None:
    """Note what has come here by `cluster.push`. Runs on: a rank."""
    for name, value in values.items():
        _PUSHED[name] = id(value)


def clashes_of(fn: Any) -> tuple[Clash, ...]:
    """The names of a function from the notebook that have another value here. Runs on: a rank."""
    of_function = globals_brought_by(fn)
    if of_function is None or of_function.get("__name__") != "__main__":
        return ()  # a function of a module is meant to have its module's names
    own = namespace_of_cells()
    found = []
    for name, brought in of_function.items():
        if name.startswith("_") or name not in own or _PUSHED.get(name) == id(own[name]):
            continue
        if not _are_same(brought, own[name]):
            found.append((name, id(own[name])))
    return tuple(found)


def _are_same(one: Any, other: Any) -> bool:
    """Whether two values are the same, or cannot be compared."""
    try:
        return one is other or _have_same_contents(one, other)
    except Exception:  # of a method of the learner's
        return True


def _have_same_contents(one: Any, other: Any) -> bool:
    torch = sys.modules["torch"]
    comparisons: list[tuple[Any, Callable[[Any, Any], bool]]] = [
        (torch.Tensor, _are_same_tensors),
        (torch.nn.Module, _are_same_modules),
        (FunctionType, _are_same_functions),
        (dict, _are_same_dicts),
        ((list, tuple), _are_same_sequences),
    ]
    for kind, is_same in comparisons:
        if isinstance(one, kind) and isinstance(other, kind):
            return is_same(one, other)
    if isinstance(one, PLAIN) or isinstance(other, PLAIN):
        return bool(one == other) or (one != one and other != other)
    kinds = {_kind_of(one), _kind_of(other)}
    return len(kinds) == 1 or "" in kinds


def _kind_of(value: Any) -> str:
    """What a value is, roughly: two of different kinds differ; "" where that is not certain."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, torch.nn.Module):
        return "module of a network"
    if isinstance(value, (list, tuple, dict)):
        return "container"
    if isinstance(value, ModuleType):
        return "module"
    return ""


def _are_same_tensors(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.numel() > MOST_NUMBERS:
        return True
    both_nan = (one != one) & (other != other)
    return bool(((one == other) | both_nan).all())


def _are_same_modules(one: Any, other: Any) -> bool:
    return _are_same_dicts(one.state_dict(), other.state_dict())


def _are_same_dicts(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    if one.keys() != other.keys():
        return False
    return all(_are_same(value, other[key]) for key, value in one.items())


def _are_same_sequences(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    return all(_are_same(*pair) for pair in zip(one, other, strict=True))


def _are_same_functions(one: FunctionType, other: FunctionType) -> bool:
    return _are_same_codes(one.__code__, other.__code__)


def _are_same_codes(one: CodeType, other: CodeType) -> bool:
    """Whether two functions were written alike, wherever their lines are."""
    if one.co_code != other.co_code or one.co_names != other.co_names:
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for first, second in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(first, CodeType) and isinstance(second, CodeType):
            if not _are_same_codes(first, second):
                return False
        elif first != second:
            return False
    return True
