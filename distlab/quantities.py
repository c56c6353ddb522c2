"""Quantities with a unit, as a person writes them: "25 GB/s", "5 us", "100 Mbit/s". Called in the notebook's kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from distlab.errors import refuse

PREFIXES = {"n": -9, "u": -6, "µ": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}  # powers of ten
QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([numµkMGTP]?)(\S*)\s*")
SECONDS = {"s": 1.0}  # units, for `quantity`
BYTES_PER_SECOND = {"B/s": 1.0, "b/s": 0.125, "bit/s": 0.125}


def quantity(name: str, value: Any, units: Mapping[str, float], example: str, zero: bool = False) -> float:
    """A number from a text such as "25 GB/s", or as it stands.

    Args:
        units: what each unit without its prefix counts; a plain number counts in the first.
        zero: whether 0 is allowed.

    Raises:
        ArgumentError: neither a number nor a text of a number and a unit, or not above 0.
    """
    number = value
    if isinstance(value, str):
        found = QUANTITY.fullmatch(value)
        number = math.nan
        if found and found[3] in units:
            number = float(Fraction(found[1]) * Fraction(10) ** PREFIXES[found[2]]) * units[found[3]]
    wrong_type = isinstance(number, bool) or not isinstance(number, (int, float))
    if wrong_type or not 0 <= number < math.inf or (number == 0 and not zero):
        rule, example = "0 or more" if zero else "above 0", f"{name}={example}"
        if "" not in units:
            rule, example = f"{rule}, as a number or with a unit ({', '.join(units)})", example.replace("=", '="') + '"'
        refuse(name, rule, value, f"Give for example {example}.", wrong_type)
    return float(number)
