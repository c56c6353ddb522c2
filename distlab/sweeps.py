"""`sweep`: functions x sizes x numbers of ranks, timed on the ranks of a cluster.

Called in the notebook's kernel; `take_turns` and `machine` run on every rank. What comes out is in measured.py.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab import interrupts, payload
from distlab.errors import RanksFailed, SweepError, refuse
from distlab.measured import Point, Sweep
from distlab.progress import progress
from distlab.remote import on_rank
from distlab.timing import BUS_FACTORS, Timing, format_bytes, measure_each

if TYPE_CHECKING:
    from distlab.cluster import Cluster

Packed = tuple[bytes, list[Any]]
EXAMPLE = 'Call sweep(cluster, {"gloo": dist.all_reduce}, [1 << 10, 1 << 20]).'


def sweep(
    cluster: Cluster,
    functions: Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]] | Callable[..., Any],
    sizes: Iterable[int],
    *,
    ranks: Sequence[int] | None = None,
    dtype: Any = None,
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
        functions: by name, functions of a tensor, for example {"gloo": dist.all_reduce, "ring": ring}; also a list of
            functions with names of their own, or a single one.
        sizes: of the full buffer, in bytes; each a multiple of the element's size.
        ranks: numbers of ranks, for example [2, 4]; None for all that the cluster has. Fewer than those are a group of
            the first n, made with dist.new_group, which every rank enters; the others idle, and the cluster and its
            variables stay as they are. A function is called as fn(tensor, group=group) there, and must take that.
        dtype: the tensor's type; None for torch.float32.
        collective: what the functions do, for the factor of busbw: one of timing.BUS_FACTORS.
        repeat, warmup: numbers of calls of each function at each size, 1 or more.

    Returns:
        The `Sweep`; a notebook shows its table where it is the last value of a cell.

    Raises:
        ArgumentError: an argument breaks its rule; nothing was measured.
        SweepError: a function failed. It names the function and the size; its `partial` is the `Sweep` so far.
        Interrupted: a person stopped it; its `partial` is the `Sweep` so far.
    """
    import torch

    dtype = torch.float32 if dtype is None else dtype
    if not isinstance(dtype, torch.dtype):
        refuse("dtype", "a torch.dtype", dtype, "Give for example dtype=torch.float64.", wrong_type=True)
    if collective not in BUS_FACTORS:
        advice = 'Give the one whose data your functions move, or "broadcast" for a factor of 1.'
        refuse("collective", f"one of {', '.join(BUS_FACTORS)}", collective, advice)
    named, counts = check_functions(functions), check_counts(ranks, cluster.n)
    sizes = check_sizes(sizes, dtype.itemsize)
    for name, value in (("repeat", repeat), ("warmup", warmup)):
        if not _is_whole(value) or value < 1:
            refuse(name, "a whole number of 1 or more", value, f"Give for example {name}=5.")
    if min(counts) < cluster.n:
        check_group(named, min(counts))
    packed = {name: _pack(name, fn) for name, fn in named.items()}
    cores = sum(dict(_run(cluster, machine)).values())
    result = functools.partial(Sweep, collective=collective, dtype=str(dtype).split(".")[1], itemsize=dtype.itemsize)
    points: list[Point] = []
    try:
        with progress(len(counts) * len(sizes)) as tell:
            for n in counts:
                for size in sizes:
                    tell(len(points) // len(named), f"{format_bytes(size)} on {_ranks(n)}")
                    timings = _measure(cluster, packed, size, dtype, n, repeat, warmup)
                    points += [Point(name, n, timing) for name, timing in zip(named, timings, strict=True)]
    except (SweepError, KeyboardInterrupt) as error:
        # what took minutes to measure is not lost with the cell
        error.partial = result(tuple(points), cores=cores)
        error.args = (f"{error}\n{_kept(len(points), len(counts) * len(sizes) * len(named))}".lstrip(), *error.args[1:])
        raise
    return result(tuple(points), cores=cores)


def _measure(
    cluster: Cluster, packed: Mapping[str, Packed], size: int, dtype: Any, n: int, repeat: int, warmup: int
) -> list[Timing]:
    """Try each function once by itself, then time all of them in turns."""
    each = functools.partial(_run, cluster, take_turns)
    for name, function in packed.items():
        try:
            each([function], size, dtype, n, 1, 0)
        except RanksFailed as error:
            raise _failed(f"{name} failed at {format_bytes(size)} on {_ranks(n)}.", error) from error
    try:
        return each(list(packed.values()), size, dtype, n, repeat, warmup)[0]
    except RanksFailed as error:
        which = ", ".join(packed)
        where = f"at {format_bytes(size)} on {_ranks(n)}, after one call of each had passed"
        raise _failed(f"{which}: one of these failed {where}.", error) from error


def _failed(what: str, error: RanksFailed) -> SweepError:
    return SweepError(f"{what}\n{type(error).__name__}: {error}", error.failures, error.finished)


def _kept(measured: int, total: int) -> str:
    if not measured:
        return "Nothing was measured before."
    return f"{measured} of {total} times were measured before: `import sys; sys.last_value.partial` has them."


def _run(cluster: Cluster, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """As cluster.run on all ranks, without the live view of a long run, which would stay behind many times."""
    from distlab.cell import Cell  # on a rank, where this module is imported too, it is not needed

    packed = payload.dumps((fn, args, {}))
    with interrupts.held():
        cluster.ready()
        everyone = cluster.check_ranks(None)
        result = cluster.client.direct_view(everyone).apply_async(on_rank, "call", *packed)
        replies = Cell(cluster.ranks, result, everyone).finish(live_after=None)
    return [payload.loads(reply[1], reply[2:]) for reply in replies]


# --- on every rank ---


def take_turns(
    rank: int, world_size: int, functions: Sequence[Packed], size: int, dtype: Any, n: int, repeat: int, warmup: int
) -> list[Timing] | None:
    """Time functions in turns on the first n ranks.

    Runs on: every rank; those from n on make the group with the others and return None.
    """
    import torch
    import torch.distributed as dist

    from distlab.worker import lend_names

    calls = [payload.loads(*function)[0] for function in functions]
    for fn in calls:
        lend_names(fn)
    group = dist.new_group(range(n)) if n < world_size else None
    if rank >= n:
        return None
    tensor = torch.empty(size // dtype.itemsize, dtype=dtype).zero_()  # torch.zeros would leave its pages untouched
    if group is None:
        return measure_each(calls, tensor, num_bytes=size, repeat=repeat, warmup=warmup)
    try:
        own = [functools.partial(fn, group=group) for fn in calls]
        return measure_each(own, tensor, num_bytes=size, repeat=repeat, warmup=warmup, group=group)
    finally:
        dist.destroy_process_group(group)


def machine(rank: int, world_size: int) -> tuple[str, int]:
    """The name of this rank's machine, and how many cores it may use there.

    Runs on: any rank.
    """
    usable = getattr(os, "sched_getaffinity", None)
    return socket.gethostname(), len(usable(0)) if usable else os.cpu_count() or 1


# --- arguments ---


def check_functions(functions: Any) -> dict[str, Callable[..., Any]]:
    """Functions by name; those of a list, or a single one, have their own names."""
    if callable(functions):
        functions = [functions]
    if isinstance(functions, (list, tuple)):
        names = [getattr(fn, "__name__", "") for fn in functions]
        if len(set(names)) < len(names) or not all(names) or "<lambda>" in names:
            refuse("functions", "functions with different names of their own", functions, f"Name them. {EXAMPLE}")
        functions = dict(zip(names, functions, strict=True))
    if not isinstance(functions, Mapping):
        refuse("functions", "a mapping of names to functions", functions, EXAMPLE, wrong_type=True)
    if not functions:
        refuse("functions", "one function or more", functions, EXAMPLE)
    for name, fn in functions.items():
        if not isinstance(name, str) or not name:
            refuse("functions", "named by texts", name, EXAMPLE, wrong_type=True)
        if not callable(fn):
            refuse(f"functions[{name!r}]", "a function of a tensor", fn, EXAMPLE, wrong_type=True)
    return dict(functions)


def check_counts(ranks: Any, n: int) -> list[int]:
    """Different numbers of ranks from 1 to `n`; all of them for None."""
    if ranks is None:
        return [n]
    listed = list(ranks) if isinstance(ranks, Iterable) and not isinstance(ranks, (str, bytes)) else []
    if not listed or not all(_is_whole(k) and 1 <= k <= n for k in listed) or len(set(listed)) < len(listed):
        rule = f"a list of different numbers of ranks from 1 to {n}"
        refuse("ranks", rule, ranks, f"This cluster has {_ranks(n)}: start a larger one, or leave ranks out.")
    return listed


def check_sizes(sizes: Any, itemsize: int) -> list[int]:
    """Different sizes in bytes above 0 that are multiples of an element's size."""
    listed = list(sizes) if isinstance(sizes, Iterable) and not isinstance(sizes, (str, bytes)) else []
    for i, size in enumerate(listed):
        if not _is_whole(size) or size < 1 or size % itemsize:
            rule = f"a whole number of bytes above 0, and a multiple of the {itemsize} of an element"
            nearest = round(size / itemsize) * itemsize if isinstance(size, (int, float)) else 0
            advice = f"Give for example {max(itemsize, nearest)}."
            refuse(f"sizes[{i}]", rule, size, advice, wrong_type=not _is_whole(size))
    if not listed or len(set(listed)) < len(listed):
        refuse("sizes", "a list of different sizes in bytes", sizes, EXAMPLE)
    return listed


def check_group(functions: Mapping[str, Callable[..., Any]], n: int) -> None:
    """Every function takes `group`, without which it could not run on some of the ranks."""
    for name, fn in functions.items():
        try:
            parameters = inspect.signature(fn).parameters.values()
        except (TypeError, ValueError):  # written in C: it will tell by itself
            continue
        if not any(p.name == "group" or p.kind is p.VAR_KEYWORD for p in parameters):
            advice = f"Write def fn(tensor, group=None), or sweep it on a cluster of {_ranks(n)}."
            rule = f"a function that takes group=, to run on {_ranks(n)} of this cluster"
            refuse(f"functions[{name!r}]", rule, fn, advice)


def _pack(name: str, fn: Callable[..., Any]) -> Packed:
    header, buffers = payload.pack((fn,), f"functions[{name!r}]")
    return header, [bytes(buffer) for buffer in buffers]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ranks(n: int) -> str:
    return "1 rank" if n == 1 else f"{n} ranks"
