"""`sweep`: functions x sizes x numbers of ranks, timed on the ranks of a cluster.

Called in the notebook's kernel; `take_turns` runs on every rank. What comes out is in sweep_result.py.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from distlab.errors import RanksFailed, SweepError, refuse
from distlab.measure.progress import progress
from distlab.measure.sweep_result import Point, Sweep
from distlab.measure.timing import Timing, bus_factor, check_count, measure_each
from distlab.plotting.units import count, format_bytes
from distlab.rank.entry_points import lend_names
from distlab.wire import serialization

if TYPE_CHECKING:
    from distlab.client.cluster import Cluster

Packed = tuple[bytes, list[Any]]
EXAMPLE = 'Call sweep(cluster, {"gloo": dist.all_reduce}, [1 << 10, 1 << 20]).'


def sweep(
    cluster: Cluster,
    functions: Mapping[str, Callable[..., Any]],
    sizes: Iterable[int],
    *,
    ranks: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    collective: str = "all_reduce",
    repeat: int = 20,
    warmup: int = 3,
) -> Sweep:
    """Time functions on the ranks of a cluster, at every size and on every number of ranks.

    At each size the functions take turns, call by call, so that whatever slows the machine down meanwhile slows all of
    them alike. Each is called as fn(tensor) on a tensor of zeros, the same one in every call; before that it is tried
    once by itself, so that an error can tell which function failed. Progress is shown while it runs and is gone from
    what is saved.

    Runs on: the notebook's kernel; the functions run on the ranks.

    Args:
        functions: by name, functions of a tensor, for example {"gloo": dist.all_reduce, "ring": ring}.
        sizes: of the full buffer, in bytes; each a multiple of the element's size.
        ranks: numbers of ranks, for example [2, 4]; None for all that the cluster has. Fewer than those are a group of
            the first n, made with dist.new_group, which every rank enters; the others idle, and the cluster and its
            variables stay as they are. A function is called as fn(tensor, group=group) there, and must take that.
        dtype: the tensor's type.
        collective: what the functions do, for the factor of busbw: one of timing.BUS_FACTORS.
        repeat, warmup: numbers of calls of each function at each size.

    Returns:
        The `Sweep`; a notebook shows its table where it is the last value of a cell.

    Raises:
        ArgumentError: an argument breaks its rule; nothing was measured.
        SweepError: a function failed. It names the function and the size; its `partial` is the `Sweep` so far.
        Interrupted: a person stopped it; its `partial` is the `Sweep` so far.
    """
    if not isinstance(dtype, torch.dtype):
        refuse("dtype", "a torch.dtype", dtype, "Give for example dtype=torch.float64.", wrong_type=True)
    bus_factor(collective, cluster.n)  # raises where it is not known
    check_count("repeat", repeat, 1)
    check_count("warmup", warmup, 0)
    check_functions(functions)
    rule = f"a list of different numbers of ranks from 1 to {cluster.n}"
    advice = f"This cluster has {count(cluster.n, 'rank')}: start a larger one, or leave ranks out."
    asked = [cluster.n] if ranks is None else ranks
    counts = check_numbers("ranks", asked, lambda n: 1 <= n <= cluster.n, rule, advice)
    rule = f"a list of different sizes in bytes above 0, multiples of the {dtype.itemsize} of an element"
    sizes = check_numbers("sizes", sizes, lambda size: size > 0 and size % dtype.itemsize == 0, rule, EXAMPLE)
    packed = {name: _pack(name, fn) for name, fn in functions.items()}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    what = (collective, str(dtype).split(".")[1], dtype.itemsize, cores, cluster.simulated)
    points: list[Point] = []
    try:
        with progress(len(counts) * len(sizes)) as bar:
            for n, size in itertools.product(counts, sizes):
                bar.set_postfix_str(f"{format_bytes(size)} on {count(n, 'rank')}")
                timings = _measure(cluster, packed, size, dtype, n, repeat, warmup)
                points += [Point(name, n, timing) for name, timing in zip(packed, timings, strict=True)]
                bar.update()
    except (SweepError, KeyboardInterrupt) as error:
        error.partial = Sweep(tuple(points), *what)  # what took minutes to measure is not lost with the cell
        total = len(counts) * len(sizes) * len(packed)
        kept = f"{len(points)} of {total} times were measured before: `import sys; sys.last_value.partial` has them."
        error.args = (f"{error}\n{kept}".lstrip(), *error.args[1:])
        raise
    return Sweep(tuple(points), *what)


def _measure(
    cluster: Cluster, packed: Mapping[str, Packed], size: int, dtype: torch.dtype, n: int, repeat: int, warmup: int
) -> list[Timing]:
    """Try each function once by itself, so that an error can tell which one failed; then time them in turns."""
    turns = [(name, [function], 1, 0) for name, function in packed.items()]
    turns.append((f"one of {', '.join(packed)}", list(packed.values()), repeat, warmup))
    for name, functions, calls, before in turns:
        try:
            timings = cluster.call(take_turns, functions, size, dtype, n, calls, before)[0]
        except RanksFailed as error:
            where = f"at {format_bytes(size)} on {count(n, 'rank')}"
            message = f"{name} failed {where}.\n{type(error).__name__}: {error}"
            raise SweepError(message, error.failures, error.finished) from error
    return timings


# --- on every rank ---


def take_turns(
    rank: int, world_size: int, functions: Sequence[Packed], size: int, dtype: Any, n: int, repeat: int, warmup: int
) -> list[Timing] | None:
    """Time functions in turns on the first n ranks.

    Runs on: every rank; those from n on make the group with the others and return None.
    """
    calls = [serialization.loads(*function)[0] for function in functions]
    for fn in calls:
        lend_names(fn)
    group = dist.new_group(range(n)) if n < world_size else None
    if rank >= n:
        return None
    if group is not None:
        calls = [functools.partial(fn, group=group) for fn in calls]
    tensor = torch.empty(size // dtype.itemsize, dtype=dtype).zero_()  # torch.zeros would leave its pages untouched
    try:
        return measure_each(calls, tensor, num_bytes=size, repeat=repeat, warmup=warmup, group=group)
    finally:
        if group is not None:
            dist.destroy_process_group(group)


# --- arguments ---


def check_functions(functions: Any) -> None:
    """Raise unless these are functions by name, one or more."""
    if not isinstance(functions, Mapping) or not functions:
        refuse("functions", "a mapping of names to functions", functions, EXAMPLE, wrong_type=True)
    for name, fn in functions.items():
        if not callable(fn):
            refuse(f"functions[{name!r}]", "a function of a tensor", fn, EXAMPLE, wrong_type=True)


def check_numbers(name: str, values: Any, fits: Callable[[int], bool], rule: str, advice: str) -> list[int]:
    """Different whole numbers, one or more, each of which fits."""
    listed = list(values) if isinstance(values, Iterable) else []
    whole = all(isinstance(value, int) and fits(value) for value in listed)
    if not listed or not whole or len(set(listed)) < len(listed):
        refuse(name, rule, values, advice)
    return listed


def _pack(name: str, fn: Callable[..., Any]) -> Packed:
    header, buffers = serialization.pack((fn,), f"functions[{name!r}]")
    return header, [bytes(buffer) for buffer in buffers]
