"""Measuring communication: timed calls on every rank, bandwidths, and a cost model.

Called by the notebooks as `distlab.measure`, and by sweep.py. `measure` runs on the ranks, the rest
anywhere. algbw and busbw are defined as in nccl-tests (doc/PERFORMANCE.md); a GB is 1e9 bytes.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlab.arguments import one_of, refuse, whole_number
from distlab.tables import format_bandwidth, format_seconds


def _twice_all_but_one_share(n: int) -> float:
    return 2 * (n - 1) / n


def _all_but_one_share(n: int) -> float:
    return (n - 1) / n


def _whole(n: int) -> float:
    return 1.0


# busbw = algbw x factor(n): what each link must carry, so that numbers compare across rank counts
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": _twice_all_but_one_share,
    "all_gather": _all_but_one_share,
    "reduce_scatter": _all_but_one_share,
    "all_to_all": _all_but_one_share,
    "broadcast": _whole,
    "reduce": _whole,
    "send_recv": _whole,
}


@dataclass(frozen=True)
class Timing:
    """Repetitions of one call, in seconds, each that of its slowest rank.

    Attributes:
        num_bytes: the full buffer's size.
        repetitions: the seconds of each.
    """

    num_bytes: int
    repetitions: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median of the repetitions."""
        return statistics.median(self.repetitions)

    @property
    def low(self) -> float:
        """First quartile."""
        return float(np.quantile(self.repetitions, 0.25))

    @property
    def high(self) -> float:
        """Third quartile."""
        return float(np.quantile(self.repetitions, 0.75))

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in GB/s: num_bytes over the median time."""
        return self.num_bytes / self.seconds / 1e9

    def busbw(self, collective: str, world_size: int) -> float:
        """Bus bandwidth in GB/s, what the links carry: algbw times the collective's factor."""
        return self.algbw * bus_factor(collective, world_size)


def measure(
    fn: Callable[..., Any],
    *args: Any,
    num_bytes: int = 0,
    repeat: int = 20,
    warmup: int = 3,
    group: Any = None,
) -> Timing:
    """Time fn(*args): warm up, then `repeat` times a barrier and a call.

    Each repetition takes as long as on its slowest rank.

    Runs on: every rank of the group (a rank that skips it hangs the rest).

    Args:
        num_bytes: size of the full buffer, for bandwidths.
        repeat: number of timed calls.
        warmup: number of calls before them.
        group: the process group that takes part; None for the default group.

    Returns:
        the same `Timing` on every rank.

    Raises:
        ArgumentError: repeat or warmup is not a whole number in range.
    """
    (timing,) = measure_each(
        [fn], *args, num_bytes=num_bytes, repeat=repeat, warmup=warmup, group=group
    )
    return timing


def measure_each(
    functions: Sequence[Callable[..., Any]],
    *args: Any,
    num_bytes: int = 0,
    repeat: int = 20,
    warmup: int = 3,
    group: Any = None,
) -> list[Timing]:
    """Like `measure`, for functions that take turns, so that whatever slows one slows them all.

    Runs on: every rank of the group (a rank that skips it hangs the rest).

    Args:
        functions: each is called as fn(*args).
        num_bytes, repeat, warmup, group: as for `measure`, for each function.

    Returns:
        a `Timing` for each function, the same on every rank; on a simulated cluster it is that of a
        single call, in virtual seconds, because all calls take equally long.
    """
    import torch
    import torch.distributed as dist

    whole_number("repeat", repeat, 1)
    whole_number("warmup", warmup, 0)
    # backend.SIMULATED, but only a rank that simulates has imported that module
    if dist.get_backend(group) == "simulated":
        return [_virtual_timing(fn, args, num_bytes, group) for fn in functions]
    for _ in range(warmup):
        for fn in functions:
            fn(*args)
    seconds = torch.zeros(len(functions), repeat, dtype=torch.float64)
    for repetition in range(repeat):
        for which in _order_of_turns(len(functions), repetition):
            dist.barrier(group)
            began = time.perf_counter()
            functions[which](*args)
            seconds[which, repetition] = time.perf_counter() - began
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=group)
    return [Timing(num_bytes, tuple(row)) for row in seconds.tolist()]


def _virtual_timing(
    fn: Callable[..., Any], args: tuple[Any, ...], num_bytes: int, group: Any
) -> Timing:
    """One call on a simulated cluster, in virtual seconds."""
    from distlab.simulated.notes import seconds_of

    seconds = seconds_of(fn, args, group)
    return Timing(num_bytes, (seconds,))


def _order_of_turns(number: int, repetition: int) -> list[int]:
    """The order of so many functions in a repetition: another one each time, the same on all ranks.

    In a fixed order, one function might always find the slower caches that the one before it left.
    """
    return random.Random(repetition).sample(range(number), number)


def bus_factor(collective: str, world_size: int) -> float:
    """What turns algbw into busbw, for example 2(n-1)/n for all_reduce.

    Runs on: anywhere. Source: nccl-tests, doc/PERFORMANCE.md.

    Raises:
        ArgumentError: no factor is known for the collective.
    """
    advice = 'Give the one whose data your function moves, or "broadcast" for a factor of 1.'
    one_of("collective", collective, BUS_FACTORS, advice)
    return BUS_FACTORS[collective](world_size)


@dataclass(frozen=True)
class Fit:
    """The cost model seconds(m) = alpha + beta m.

    Attributes:
        alpha: latency in seconds.
        beta: seconds for each byte.
    """

    alpha: float
    beta: float

    def seconds(self, num_bytes: float) -> float:
        """Predicted seconds for a message of `num_bytes` bytes."""
        return self.alpha + self.beta * num_bytes

    def __str__(self) -> str:
        bandwidth = format_bandwidth(1 / self.beta / 1e9).strip()
        return f"alpha = {format_seconds(self.alpha).strip()}, 1/beta = {bandwidth}"


def fit_alpha_beta(num_bytes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit alpha + beta m to measured times.

    Least squares of the relative error, so that small messages count as much as large ones.

    Runs on: anywhere. Source: Hockney, The communication challenge for MPP (1994), for the model.

    Args:
        num_bytes: message sizes, at least two different ones.
        seconds: the measured time of each.

    Raises:
        ArgumentError: fewer than two sizes, or a time that is not above 0.
    """
    different_sizes = len(set(num_bytes))
    if len(num_bytes) != len(seconds) or different_sizes < 2:
        rule = "two different sizes or more, one for each time"
        refuse("num_bytes", rule, list(num_bytes), "Measure more sizes.")
    if min(seconds) <= 0:
        refuse("seconds", "above 0", list(seconds), "Measure again.")
    m = np.array(num_bytes, dtype=float)
    t = np.array(seconds, dtype=float)
    # minimise sum ((alpha + beta m) / t - 1)^2; noise must not make a latency or a bandwidth
    # negative
    beta, alpha = np.polyfit(m, t, 1, w=1 / t)
    return Fit(alpha=max(float(alpha), 0.0), beta=max(float(beta), 1e-15))
