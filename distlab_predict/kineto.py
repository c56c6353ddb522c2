"""Reads a trace that torch.profiler wrote: how long operators and collectives took on a rank.

Called by calibration.py, on the notebook's kernel. On a GPU a kernel carries the number of the call
that launched it ("correlation"), and that call happened while an operator ran, on the same thread.
On a CPU an operator takes as long as its event.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distlab.simulated.products import bytes_of
from distlab.words import grouped
from distlab_predict.kineto_file import OPERATORS, Event, read_file
from distlab_predict.kineto_gloo import as_called
from distlab_predict.kineto_names import collective_named, dtype_named

LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime"}
KERNELS = {"kernel", "gpu_memcpy", "gpu_memset"}
MESSAGES = {"send", "recv"}


@dataclass
class Operator:
    """An operator that a rank has called.

    Attributes:
        name: without its library.
        begin: seconds, on the trace's clock.
        dims: the sizes of each argument; [] of one that is no tensor.
        dtypes: of each argument, as torch names them.
        seconds: that the device took for it, with what it has called.
        parts: operators that it has called.
    """

    name: str
    begin: float
    dims: Sequence[Any] = ()
    dtypes: Sequence[str] = ()
    seconds: float = 0.0
    parts: list[Operator] = field(default_factory=list)


@dataclass(frozen=True)
class Collective:
    """A collective, or a message, of a rank.

    Attributes:
        name: "all_reduce" and so on.
        num_bytes: that it sends: of a reduce_scatter, those of its result.
        ranks: of its group; None if the trace does not say it.
        begin: seconds, on the trace's clock.
        end: seconds.
    """

    name: str
    num_bytes: int
    ranks: int | None
    begin: float
    end: float


@dataclass(frozen=True)
class Trace:
    """What a rank did.

    Attributes:
        source: the file's name.
        rank: of the trace; None if it does not say it.
        seconds: from the begin of its first operator or collective to the last end; on a GPU, of
            kernels.
        operators: those that no other operator has called, in the order of their begin.
        collectives: in no order.
    """

    source: str
    rank: int | None
    seconds: float
    operators: list[Operator]
    collectives: list[Collective]


def read(path: str | Path) -> Trace:
    """Read a trace.

    Args:
        path: of a .json or .json.gz file, from prof.export_chrome_trace.

    Raises:
        ArgumentError: it cannot be read, is no such trace, or has no shapes.
    """
    file = read_file(path)
    kernels = [event for event in file.events if event.category in KERNELS]
    operators = [event for event in file.events if event.category in OPERATORS]
    ranks = _only_group(file.world)
    collectives = list(_collectives(kernels or as_called(file.events, ranks), ranks))
    rank = file.world.get("rank")
    return Trace(
        source=file.name,
        rank=rank if isinstance(rank, int) else None,
        seconds=_duration([*(kernels or operators), *collectives]),
        operators=_operators(file.events, kernels),
        collectives=collectives,
    )


def _duration(parts: Sequence[Event | Collective]) -> float:
    """Seconds from the first begin to the last end."""
    return max(part.end for part in parts) - min(part.begin for part in parts)


# --- operators ---


def _operators(events: Sequence[Event], kernels: Sequence[Event]) -> list[Operator]:
    """The operators of all threads, with the kernels that they have launched."""
    took: dict[Hashable, float] = {}  # by launch, what its kernels took
    for kernel in kernels:
        if not _is_collective(kernel):
            launch = kernel.carried.get("correlation")
            took[launch] = took.get(launch, 0.0) + kernel.seconds
    by_thread = grouped((event.thread, event) for event in events if _is_of_operators(event, took))
    found: list[Operator] = []
    for thread in by_thread.values():
        found += _nested(thread, took if kernels else None)
    return sorted(found, key=lambda operator: operator.begin)


def _is_of_operators(event: Event, took: Mapping[Hashable, float]) -> bool:
    """Whether an event is an operator, or launches a kernel; a call of a group is neither."""
    if event.category in LAUNCHES:
        return event.carried.get("correlation") in took
    return event.category in OPERATORS and not event.name.startswith("c10d::")


def _nested(events: Iterable[Event], took: Mapping[Hashable, float] | None) -> list[Operator]:
    """The operators of a thread that no other one has called.

    Args:
        events: operators, and calls that launch kernels.
        took: the seconds of each launch's kernels; None if there is no GPU.
    """
    outermost: list[Operator] = []
    open_ones: list[tuple[float, Operator]] = []  # with the time of its end, from outside in
    for event in sorted(events, key=lambda event: (event.begin, -event.end)):
        while open_ones and open_ones[-1][0] <= event.begin:
            open_ones.pop()
        if event.category in LAUNCHES:
            seconds = took[event.carried["correlation"]] if took else 0.0
            for _, around in open_ones:
                around.seconds += seconds
            continue
        operator = _operator(event)
        if took is None and "autograd::" not in event.name:  # which only calls others
            operator.seconds = event.seconds
        siblings = open_ones[-1][1].parts if open_ones else outermost
        siblings.append(operator)
        open_ones.append((event.end, operator))
    return outermost


def _operator(event: Event) -> Operator:
    return Operator(
        name=event.name.rpartition("::")[2],
        begin=event.begin,
        dims=event.list("Input Dims"),
        dtypes=[dtype_named(str(name)) for name in event.list("Input type")],
    )


# --- collectives ---


def _is_collective(kernel: Event) -> bool:
    is_nccl = kernel.name.lower().startswith(("nccl", "rccl"))
    return is_nccl or "Collective name" in kernel.carried


def _collectives(events: Iterable[Event], ranks: int | None) -> Iterator[Collective]:
    """Collectives that a trace describes: kernels of NCCL, or gloo's own events on a CPU.

    Args:
        events: kernels; or all events, if there is no GPU.
        ranks: of the only group; None if there are several.
    """
    for event in events:
        if "Collective name" in event.carried and event.category in KERNELS:
            name = collective_named(str(event.carried["Collective name"]))
            num_bytes = _nccl_bytes(name, event)
            group = event.carried.get("Group size")
        elif event.name.startswith("gloo:"):
            name = collective_named(event.name.removeprefix("gloo:"))
            num_bytes = _gloo_bytes(event)
            group = ranks
        else:
            continue
        if name in MESSAGES:
            group = 2  # a trace has the ranks of the whole group
        yield Collective(name, num_bytes, group, event.begin, event.end)


def _nccl_bytes(name: str, event: Event) -> int:
    """What a rank sends in a kernel of NCCL."""
    side = "Out" if name == "reduce_scatter" else "In"
    elements = event.carried.get(f"{side} msg nelems")
    if not isinstance(elements, int):
        return 0
    return elements * _element_bytes(event.carried.get("dtype"))


def _gloo_bytes(event: Event) -> int:
    """What a rank gives to a collective of gloo."""
    num_bytes = 0
    for dims, dtype in zip(event.list("Input Dims"), event.list("Input type"), strict=False):
        num_bytes += math.prod(dims) * _element_bytes(dtype)
    return num_bytes


def _element_bytes(dtype: Any) -> int:
    """Bytes of an element, by the trace's name of its format."""
    return int(bytes_of(dtype_named(str(dtype))))


def _only_group(world: Mapping[str, Any]) -> int | None:
    """The number of ranks of the only group; None if there are several."""
    groups = world.get("pg_config") or []
    if len(groups) > 1:
        return None
    return world.get("world_size")
