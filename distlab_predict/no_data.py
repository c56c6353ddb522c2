"""The number that `loss.item()` gives in a recorded program, where no tensor has data.

Called by torch_values.py and deciding.py, in the process of a rank that is recorded. Programs add
such numbers up, average and print them. Where they compare them, deciding.py answers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

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


def _refuse(*_: Any) -> NoReturn:
    raise NotImplementedError(NEEDED)


class NoData(float):
    """A float without a value: what is computed with it has none either.

    It prints "(no data)". It is finite, as those of a training that works. Any other comparison is
    decided elsewhere, or else an error, as is a whole number that is made of it.

    Attributes:
        decide: gives the answer where it is compared with another number.
    """

    decide: ClassVar[Callable[[], bool]] = staticmethod(_refuse)

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


def _truth(_: NoData) -> bool:
    return NoData.decide()


def _comparison(name: str) -> Callable[[NoData, Any], Any]:
    """How such a number compares with itself, with infinity, and with others."""
    own = getattr(operator, name)

    def compare(number: NoData, other: Any) -> Any:
        if other is number:
            return own(0.0, 0.0)
        if not isinstance(other, (int, float)):
            return NotImplemented
        if math.isinf(other):
            return own(0.0, other)
        return NoData.decide()

    return compare


def decide_by(answer: Callable[[], bool]) -> None:
    """Have comparisons of such numbers answered by this, and no longer raise."""
    setattr(NoData, "decide", staticmethod(answer))  # noqa: B010 - an attribute of the class


def _give_methods() -> None:
    """Have arithmetic give such a number again, comparisons ask, and whole numbers raise."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        setattr(NoData, f"__{name}__", _unknown)
        setattr(NoData, f"__r{name}__", _unknown)
    for name in ("neg", "pos", "abs", "round"):
        setattr(NoData, f"__{name}__", _unknown)
    for name in COMPARED:
        setattr(NoData, f"__{name}__", _comparison(name))
    setattr(NoData, "__bool__", _truth)  # noqa: B010 - float has none
    for name in ("int", "index", "trunc", "floor", "ceil"):
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
