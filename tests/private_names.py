"""How the tests find private names of other libraries, and say which one a new version lacks."""

import dis
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any


def found(name: str) -> Any:
    """The object with a dotted name, whose longest possible beginning is a module.

    Raises:
        AttributeError: nothing has this name.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            value = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise AttributeError(f"there is no module {parts[0]}")


def variables_of(function: Callable[..., Any]) -> set[str]:
    """The parameters and local variables of a function."""
    return {*inspect.unwrap(function).__code__.co_varnames}


def attributes_set_by(kind: type) -> set[str]:
    """The attributes that the methods of a class set on their objects."""
    names: set[str] = set()
    for base in kind.__mro__:
        for method in vars(base).values():
            function = inspect.unwrap(method) if callable(method) else None
            for code in _codes_of(getattr(function, "__code__", None)):
                set_there = (
                    one for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"
                )
                names |= {instruction.argval for instruction in set_there}
    return names


def _codes_of(code: CodeType | None) -> Iterator[CodeType]:
    """The code of a function, and of the functions that it defines."""
    if code is None:
        return
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_of(constant)


def source_of(module: str) -> str:
    """The source of a module, which is not imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"there is no module {module}"
    assert spec.loader is not None
    return spec.loader.get_source(module)
