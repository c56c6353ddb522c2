"""Sizes, times and bandwidths as short texts with units.

Called by the figures. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence


def scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """A value in the largest unit that is not larger than it, with two digits or more."""
    size, unit = next((pair for pair in units if abs(value) >= pair[0] * 0.9995), units[-1])
    number = value / size
    return f"{number:.0f} {unit}" if abs(number) >= 9.95 else f"{number:.2g} {unit}"


def format_bytes(num_bytes: float) -> str:
    """A size as text, for example "1 kB" (1 kB = 1000 bytes).

    Runs on: anywhere.
    """
    return scaled(num_bytes, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def format_seconds(seconds: float) -> str:
    """A time as text, for example "38 µs".

    Runs on: anywhere.
    """
    return "0" if seconds == 0 else scaled(seconds, ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def format_bandwidth(bytes_per_second: float) -> str:
    """A bandwidth as text, for example "2.3 GB/s" (1 GB = 1e9 bytes).

    Runs on: anywhere.
    """
    return format_bytes(bytes_per_second) + "/s"
