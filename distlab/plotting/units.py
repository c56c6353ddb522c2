"""Times, bandwidths and sizes as texts: what notebooks print, tables show and figures write beside their marks.

`distlab.measure` offers them to notebooks. Runs anywhere; imports nothing.
"""

from __future__ import annotations


def format_seconds(seconds: float) -> str:
    """A time as a notebook prints it, three digits and a unit, 9 characters wide: "  1.23 ms".

    Runs on: anywhere.
    """
    scales = (("s ", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, scale = next((pair for pair in scales if seconds >= pair[1] * 0.9995), scales[-1])
    value = seconds / scale
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:>6.{digits}f} {unit}"


def format_bandwidth(gigabytes_per_second: float) -> str:
    """A bandwidth as a notebook prints it, 11 characters wide: "  1.23 GB/s", where 1 GB is 1e9 bytes.

    Runs on: anywhere.
    """
    return f"{gigabytes_per_second:>6.2f} GB/s"


def format_bytes(num_bytes: int) -> str:
    """A size in the unit of 1024 or of 1000 that divides it: "4 B", "64 KiB", "40 kB"; a long one rounded: "26.2 MB".

    Runs on: anywhere.
    """
    for base, units in ((1024, ("B", "KiB", "MiB", "GiB")), (1000, ("B", "kB", "MB", "GB"))):
        value, step = num_bytes, 0
        while value >= base and value % base == 0 and step < 3:
            value, step = value // base, step + 1
        if value < base:
            return f"{value} {units[step]}"
    if num_bytes < 10_000:
        return f"{num_bytes} B"
    unit, scale = next(pair for pair in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if num_bytes >= pair[1] * 0.9995)
    return f"{num_bytes / scale:.3g} {unit}"


def count(number: int, noun: str) -> str:
    """A number of things: "1 rank", "4 ranks".

    Runs on: anywhere.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
