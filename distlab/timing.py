"""Measuring communication: a call repeated on every rank, timed as its slowest rank, with bandwidths and a cost model.

`measure` runs on the ranks, the rest anywhere. algbw and busbw are defined as in nccl-tests (doc/PERFORMANCE.md); a GB
is 1e9 bytes.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distlab.errors import refuse

# busbw = algbw x factor(n): what each link must carry, so that numbers compare across rank counts
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}


@dataclass(frozen=True)
class Timing:
    """Repetitions of one call, in seconds, each that of its slowest rank; `num_bytes` is the full buffer's size."""

    num_bytes: int
    repetitions: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median of the repetitions."""
        return statistics.median(self.repetitions)

    @property
    def low(self) -> float:
        """First quartile."""
        return _quartiles(self.repetitions)[0]

    @property
    def high(self) -> float:
        """Third quartile."""
        return _quartiles(self.repetitions)[2]

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in GB/s: num_bytes over the median time."""
        return algbw(self.num_bytes, self.seconds)

    def busbw(self, collective: str, world_size: int) -> float:
        """Bus bandwidth in GB/s: what the links carry."""
        return busbw(collective, self.num_bytes, self.seconds, world_size)

    def __str__(self) -> str:
        median, low, high = (format_seconds(s).strip() for s in (self.seconds, self.low, self.high))
        return f"{median} (quartiles {low} to {high})"


def measure(
    fn: Callable[..., Any], *args: Any, num_bytes: int = 0, repeat: int = 20, warmup: int = 3, group: Any = None
) -> Timing:
    """Time fn(*args): warm up, then barrier and call, `repeat` times; each repetition counts as its slowest rank.

    Runs on: every rank of the group (a rank that skips it hangs the rest).

    Args:
        num_bytes: size of the full buffer, for bandwidths. repeat, warmup: numbers of calls.
        group: the process group that takes part; None for the default group.

    Returns:
        the same `Timing` on every rank.

    Raises:
        ArgumentError: repeat or warmup is not a whole number in range.
    """
    return measure_each([fn], *args, num_bytes=num_bytes, repeat=repeat, warmup=warmup, group=group)[0]


def measure_each(
    functions: Sequence[Callable[..., Any]],
    *args: Any,
    num_bytes: int = 0,
    repeat: int = 20,
    warmup: int = 3,
    group: Any = None,
) -> list[Timing]:
    """As `measure`, for functions that take turns: whatever slows the machine down meanwhile slows all of them alike.

    Runs on: every rank of the group (a rank that skips it hangs the rest).

    Returns:
        a `Timing` for each function, the same on every rank.
    """
    import torch
    import torch.distributed as dist

    _check_count("repeat", repeat, 1)
    _check_count("warmup", warmup, 0)
    for fn in functions:
        if not callable(fn):
            refuse("fn", "callable", fn, "Call measure(dist.all_reduce, tensor).", wrong_type=True)
    for _ in range(warmup):
        for fn in functions:
            fn(*args)
    seconds = torch.zeros(len(functions), repeat, dtype=torch.float64)
    for i in range(repeat):
        # in another order each time, the same on all ranks: a function may leave slower caches to the one after it
        for which in random.Random(i).sample(range(len(functions)), len(functions)):
            dist.barrier(group)
            began = time.perf_counter()
            functions[which](*args)
            seconds[which, i] = time.perf_counter() - began
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=group)
    return [Timing(num_bytes, tuple(row)) for row in seconds.tolist()]


def algbw(num_bytes: int, seconds: float) -> float:
    """Algorithm bandwidth in GB/s: the buffer's size over the time.

    Runs on: anywhere.
    """
    return num_bytes / seconds / 1e9


def busbw(collective: str, num_bytes: int, seconds: float, world_size: int) -> float:
    """Bus bandwidth in GB/s: algbw times the collective's factor, for example 2(n-1)/n for all_reduce.

    Runs on: anywhere. Source: nccl-tests, doc/PERFORMANCE.md.

    Raises:
        ArgumentError: no factor is known for the collective.
    """
    if collective not in BUS_FACTORS:
        refuse(
            "collective", f"one of {', '.join(BUS_FACTORS)}", collective, "Call algbw(num_bytes, seconds) for others."
        )
    return algbw(num_bytes, seconds) * BUS_FACTORS[collective](world_size)


@dataclass(frozen=True)
class Fit:
    """The cost model seconds(m) = alpha + beta m: latency alpha in seconds, beta in seconds a byte.

    `error` is the median of |model / measured - 1| over the points.
    """

    alpha: float
    beta: float
    error: float

    def seconds(self, num_bytes: float) -> float:
        """Predicted seconds for a message of `num_bytes` bytes."""
        return self.alpha + self.beta * num_bytes

    def __str__(self) -> str:
        bandwidth = format_bandwidth(1 / self.beta / 1e9).strip()
        return f"alpha = {format_seconds(self.alpha).strip()}, 1/beta = {bandwidth}"


def fit_alpha_beta(num_bytes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit alpha + beta m to measured times by least squares of the relative error: small messages count as well.

    Runs on: anywhere. Source: Hockney, The communication challenge for MPP (1994), for the model.

    Args:
        num_bytes: message sizes, at least two different ones. seconds: the measured time of each.

    Raises:
        ArgumentError: fewer than two sizes, or a time that is not above 0.
    """
    if len(num_bytes) != len(seconds) or len(set(num_bytes)) < 2:
        refuse("num_bytes", "two different sizes or more, one for each time", list(num_bytes), "Measure more sizes.")
    if min(seconds) <= 0:
        refuse("seconds", "above 0", list(seconds), "Measure again.")
    # minimise sum ((a + b m) / t - 1)^2 over a >= 0, b > 0
    weights = [1 / t for t in seconds]
    s_ww = sum(w * w for w in weights)
    s_wm = sum(w * w * m for w, m in zip(weights, num_bytes, strict=True))
    s_mm = sum((w * m) ** 2 for w, m in zip(weights, num_bytes, strict=True))
    s_w = sum(weights)
    s_m = sum(w * m for w, m in zip(weights, num_bytes, strict=True))
    determinant = s_ww * s_mm - s_wm**2
    alpha = (s_w * s_mm - s_m * s_wm) / determinant
    beta = (s_ww * s_m - s_wm * s_w) / determinant
    if alpha < 0 or beta <= 0:
        alpha, beta = (0.0, s_m / s_mm) if alpha < 0 else (s_w / s_ww, 1e-15)
    errors = [abs((alpha + beta * m) / t - 1) for m, t in zip(num_bytes, seconds, strict=True)]
    return Fit(alpha, beta, statistics.median(errors))


def format_seconds(seconds: float) -> str:
    """A time as a notebook prints it, three digits and a unit, 9 characters wide: "  1.23 ms"."""
    scales = (("s ", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, scale = next((pair for pair in scales if seconds >= pair[1] * 0.9995), scales[-1])
    value = seconds / scale
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:>6.{digits}f} {unit}"


def format_bandwidth(gigabytes_per_second: float) -> str:
    """A bandwidth as a notebook prints it, 11 characters wide: "  1.23 GB/s"."""
    return f"{gigabytes_per_second:>6.2f} GB/s"


def format_bytes(num_bytes: int) -> str:
    """A size with the unit that fits it, of 1000 (kB) or of 1024 (KiB) as it divides: "4 B", "64 KiB", "1 MB"."""
    for base, units in ((1024, ("B", "KiB", "MiB", "GiB")), (1000, ("B", "kB", "MB", "GB"))):
        value, step = num_bytes, 0
        while value >= base and value % base == 0 and step < 3:
            value, step = value // base, step + 1
        if value < base:
            return f"{value} {units[step]}"
    return f"{num_bytes} B"


def _quartiles(values: Sequence[float]) -> list[float]:
    if len(values) == 1:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        refuse(name, f"a whole number of {least} or more", value, f"Call measure(fn, tensor, {name}={max(least, 1)}).")
