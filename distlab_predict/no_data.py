"""The number that `loss.item()` gives in a recorded program, where no tensor has data.

Called by torch_changed.py, in the process of a rank that is recorded. Programs add such numbers up,
average and print them; which way a program goes must not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

SHOWN = "(no data)"
NEEDED = (
    "what comes next depends on the value of a tensor, and here tensors have only shapes: leave it "
    "out while you predict, or decide by what needs no data, such as the number of the step"
)
# functions of math with one argument that give a float
OF_MATH = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "fabs", "tanh")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
# what is true of a number that training gives
IS_FINITE = {"isfinite": True, "isnan": False, "isinf": False}


class NoData(float):
    """A float without a value: what is computed with it has none either.

    It prints "(no data)". Whoever compares it, or makes a whole number of it, gets an
    error, because the program would go one way or the other.
    """

    def __new__(cls) -> NoData:
        return super().__new__(cls, math.nan)

    def __repr__(self) -> str:
        return SHOWN

    def __format__(self, _: str) -> str:
        return SHOWN

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[type[NoData], tuple[()]]:
        return NoData, ()

    def __array_ufunc__(self, function: Any, method: str, *_: Any, **__: Any) -> Any:
        """What a function of numpy makes of it."""
        if function.__name__ in IS_FINITE:
            return IS_FINITE[function.__name__]
        return NoData()


def _unknown(*_: Any) -> NoData:
    return NoData()


def _refuse(*_: Any) -> NoReturn:
    raise NotImplementedError(NEEDED)


def _give_methods() -> None:
    """Have arithmetic give such a number again, and decisions raise."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        setattr(NoData, f"__{name}__", _unknown)
        setattr(NoData, f"__r{name}__", _unknown)
    for name in ("neg", "pos", "abs", "round"):
        setattr(NoData, f"__{name}__", _unknown)
    for name in (*COMPARED, "bool", "int", "index", "trunc", "floor", "ceil"):
        setattr(NoData, f"__{name}__", _refuse)


_give_methods()


def changed_math() -> dict[str, Callable[..., Any]]:
    """Functions of `math`, by name, that know such numbers.

    They are finite, as those of a training that works.
    """
    changed: dict[str, Callable[..., Any]] = {}
    for name in OF_MATH:
        if hasattr(math, name):  # some are younger than the oldest Python
            changed[name] = _of_one_number(getattr(math, name))
    for name, answer in IS_FINITE.items():
        changed[name] = _decided(getattr(math, name), answer)
    return changed


def _of_one_number(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(number: Any, *others: Any) -> Any:
        if isinstance(number, NoData):
            return NoData()
        return function(number, *others)

    return call


def _decided(function: Callable[..., bool], answer: bool) -> Callable[..., bool]:
    def call(number: Any) -> bool:
        return answer if isinstance(number, NoData) else function(number)

    return call
