"""Rules for arguments: each raises an ArgumentError for a value that breaks it.

Runs anywhere, called by all that take arguments from a person. `quantity` also reads a text such as
"25 GB/s" as a number.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from distlab.errors import ArgumentError, ArgumentTypeError

# Powers of ten, from the smallest. A keyboard types the micro sign, which is the one that is shown;
# some programs write the Greek letter.
PREFIXES = {
    "n": -9,
    "u": -6,
    "\N{GREEK SMALL LETTER MU}": -6,
    "\N{MICRO SIGN}": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
}
# a number, a power of ten, a prefix and a unit
QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?)(?:e([+-]?\d+))?\s*([numkMGTP\u00b5\u03bc]?)(\S*)\s*")
SECONDS = {"s": 1.0}  # units, for `quantity`
BYTES_PER_SECOND = {"B/s": 1.0, "b/s": 0.125, "bit/s": 0.125}
NO_UNIT = {"": 1.0}  # of a share or a factor


def quantity(
    name: str, value: Any, units: Mapping[str, float], example: str, zero: bool = False
) -> float:
    """Return the number in a text such as "25 GB/s", or the number itself, as a float.

    Args:
        name: the argument's.
        value: a text or a number.
        units: the value of each unit without a prefix; a plain number is in the first unit.
        example: a value that is allowed.
        zero: whether 0 is allowed.

    Raises:
        ArgumentError: neither a number nor a text of a number and a unit, or not above 0.
    """
    rule = "0 or more" if zero else "above 0"
    if "" not in units:
        rule = f"{rule}, as a number or with a unit ({', '.join(units)})"
        example = f'"{example}"'
    advice = f"For example: {name}={example}."
    number = value
    if isinstance(value, str):
        number = _number_in(value, units)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        refuse(name, rule, value, advice, wrong_type=True)
    is_allowed_zero = zero and number == 0
    if not (0 < number < math.inf or is_allowed_zero):
        refuse(name, rule, value, advice)
    return float(number)


def _number_in(text: str, units: Mapping[str, float]) -> float:
    """The number in a text such as "25 GB/s"; not a number if it cannot be read."""
    found = QUANTITY.fullmatch(text)
    if found is None:
        return math.nan
    digits, exponent, prefix, unit = found.groups(default="0")
    # a prefix needs a unit: nobody who writes a timeout of "5m" means milliseconds
    if unit not in units or (prefix and not unit):
        return math.nan
    power = int(exponent) + PREFIXES[prefix]
    # a power of ten in the text, so that "0.1 ms" is as exact as 0.0001
    return float(f"{digits}e{power}") * units[unit]


def refuse(
    name: str, rule: str, value: object, advice: str = "", wrong_type: bool = False
) -> NoReturn:
    """Raise the error for a bad argument: "<name> must be <rule>, got <value!r>." and what to do.

    Runs on: anywhere.
    """
    text = repr(value)
    if len(text) > 200:
        text = text[:197] + "..."
    message = f"{name} must be {rule}, got {text}. {advice}".rstrip()
    if wrong_type:
        raise ArgumentTypeError(message)
    raise ArgumentError(message)


def wrong(sentence: str) -> NoReturn:
    """Raise the error for arguments that are wrong together, in a sentence that says which and why.

    A single bad value is refused by `refuse`, whose message is always built in the same way. Where
    each value is right and only the combination is not, no "must be" and no "got" says it well.

    Args:
        sentence: what does not fit, and what to do, such as "The network has 6 ranks, the cluster
            8."

    Runs on: anywhere.
    """
    raise ArgumentError(sentence)


# --- rules for arguments: each raises if the value breaks it ---


def whole_number(name: str, value: Any, low: int, high: int | None = None, advice: str = "") -> int:
    """Return a value if it is a whole number from `low` to `high`; None for no upper limit."""
    rule = f"a whole number from {low} to {high}"
    if high is None:
        rule = f"a whole number of {low} or more"
    if not advice:
        advice = f"For example: {name}={max(1, low)}."
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(name, rule, value, advice, wrong_type=True)
    is_above = high is not None and value > high
    if value < low or is_above:
        refuse(name, rule, value, advice)
    return value


def seconds(name: str, value: Any) -> float:
    """Return a number of seconds above 0 as a float."""
    return quantity(name, value, {"": 1.0}, "5")


def share_below_1(name: str, value: Any) -> float:
    """Return a share from 0 up to, but without, 1 as a float."""
    share = quantity(name, value, NO_UNIT, "0.1", zero=True)
    if share >= 1:
        refuse(name, "at least 0 and below 1", share, f"For example: {name}=0.1.")
    return share


def share_above_0(name: str, value: Any) -> float:
    """Return a share above 0, up to and with 1, as a float."""
    share = quantity(name, value, NO_UNIT, "0.5")
    if share > 1:
        refuse(name, "above 0 and up to 1", share, f"For example: {name}=0.5.")
    return share


def one_of(name: str, value: Any, choices: Iterable[Any], advice: str = "") -> Any:
    """Return a value if it is one of `choices`."""
    allowed = list(choices)
    if value not in allowed:
        words = ", ".join(repr(one) for one in allowed)
        refuse(name, f"one of {words}", value, advice)
    return value


def ranks(name: str, value: Any, n: int, advice: str = "") -> list[int]:
    """Return one or more different ranks of a world of `n` as a list."""
    rule = f"a list of different ranks from 0 to {n - 1}"
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        refuse(name, rule, value, advice, wrong_type=True)
    found: list[int] = []
    for rank in value:
        is_a_rank = type(rank) is int and 0 <= rank < n
        if not is_a_rank or rank in found:
            refuse(name, rule, value, advice)
        found.append(rank)
    if not found:
        refuse(name, rule, value, advice)
    return found


def mapping(name: str, value: Any, what: str, advice: str = "") -> Mapping[Any, Any]:
    """Return a value if it is a mapping; `what` says of what to what, in words."""
    if not isinstance(value, Mapping):
        refuse(name, f"a mapping of {what}", value, advice, wrong_type=True)
    return value


def instance(name: str, value: Any, kind: type, advice: str) -> None:
    """Refuse a value that is no object of a class."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        refuse(name, f"{article} {kind.__name__}", value, advice, wrong_type=True)
