"""Reads a trace that torch.profiler wrote: how long operators and collectives took on a rank.

Called by calibration.py, on the notebook's kernel. The format is Chrome's, and what its events
carry is Kineto's (libkineto/src/output_json.cpp in pytorch/kineto). On a GPU a kernel carries the
number of the call that launched it ("correlation"), and that call happened while an operator ran,
on the same thread. On a CPU an operator takes as long as its event.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distlab.arguments import refuse

HOW = 'Write one with profile(record_shapes=True) and prof.export_chrome_trace("trace.json").'
OPERATORS = {"cpu_op", "operator"}
LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime"}
KERNELS = {"kernel", "gpu_memcpy", "gpu_memset"}
MARK = "user_annotation"
# by the name in a trace, without underscores
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
}
# torch's names by those in a trace: C++ types, and c10's ScalarType in lower case
DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
}
SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "int16": 2, "float16": 2}
SIZES |= {"bfloat16": 2}  # bytes of an element; all others have one


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
        operators: those that no other operator has called, in the order of their begin.
        collectives: in no order.
    """

    source: str
    rank: int | None
    operators: list[Operator]
    collectives: list[Collective]


def read(path: str | Path) -> Trace:
    """Read a trace.

    Args:
        path: of a .json or .json.gz file, from prof.export_chrome_trace.

    Raises:
        ArgumentError: it cannot be read, is no such trace, or has no shapes.
    """
    path = Path(path)
    content = _content(path)
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        refuse("trace", "a trace of torch.profiler", str(path), HOW)
    complete = [event for event in events if _is_complete(event)]
    if not any(_category(event) in OPERATORS for event in complete):
        refuse("trace", "a trace of torch.profiler that has operators", str(path), HOW)
    if not any("Input Dims" in _of(event) for event in complete):
        refuse("trace", "one with the shapes of its operators", str(path), HOW)
    world = content.get("distributedInfo", {}) if isinstance(content, dict) else {}
    kernels = [event for event in complete if _category(event) in KERNELS]
    return Trace(
        path.name,
        world.get("rank"),
        _operators(complete, kernels),
        list(_collectives(kernels or complete, _only_group(world))),
    )


def _content(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ArgumentError: it cannot be read.
    """
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        return json.loads(raw)
    except OSError as error:  # gzip's as well
        why = f"Reading it failed: {error}."
    except (EOFError, zlib.error):
        why = "It ends early, or is damaged. Copy it again."
    except ValueError:
        why = HOW
    refuse("trace", "a file with a trace of torch.profiler", str(path), why)


# --- events ---


def _is_complete(event: Any) -> bool:
    """Whether an event has a begin and a duration."""
    return isinstance(event, dict) and event.get("ph") == "X" and "dur" in event


def _category(event: dict[str, Any]) -> str:
    return str(event.get("cat", "")).lower()


def _of(event: dict[str, Any]) -> dict[str, Any]:
    """What an event carries."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _seconds(event: dict[str, Any]) -> float:
    """How long an event took; a trace has microseconds."""
    return float(event["dur"]) / 1e6


def _ends(event: dict[str, Any]) -> tuple[float, float]:
    """Begin and end of an event, in seconds."""
    begin = float(event["ts"]) / 1e6
    return begin, begin + _seconds(event)


def dtype_named(name: str) -> str:
    """The number format that a trace names: "bfloat16" for "c10::BFloat16"."""
    short = name.removeprefix("c10::").lower()
    return DTYPES.get(short, short)


# --- operators ---


def _operators(events: list[dict[str, Any]], kernels: list[dict[str, Any]]) -> list[Operator]:
    """The operators of all threads, with the kernels that they have launched."""
    took: dict[Any, float] = {}  # by launch, what its kernels took
    for kernel in kernels:
        if not _is_collective(kernel):
            launch = _of(kernel).get("correlation")
            took[launch] = took.get(launch, 0.0) + _seconds(kernel)
    by_thread: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        is_launch = _category(event) in LAUNCHES and _of(event).get("correlation") in took
        # a call of a group is a Collective
        is_operator = _category(event) in OPERATORS and not event["name"].startswith("c10d::")
        if is_launch or is_operator:
            by_thread.setdefault((event.get("pid"), event.get("tid")), []).append(event)
    found: list[Operator] = []
    for thread in by_thread.values():
        found += _nested(thread, took if kernels else None)
    return sorted(found, key=lambda operator: operator.begin)


def _nested(events: list[dict[str, Any]], took: dict[Any, float] | None) -> list[Operator]:
    """The operators of a thread that no other one has called.

    Args:
        events: operators, and calls that launch kernels.
        took: the seconds of each launch's kernels; None if there is no GPU.
    """
    events.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
    outermost: list[Operator] = []
    open_ones: list[tuple[float, Operator]] = []  # with the time of its end, from outside in
    for event in events:
        begin = float(event["ts"])
        while open_ones and open_ones[-1][0] <= begin:
            open_ones.pop()
        if _category(event) in LAUNCHES:
            seconds = took.get(_of(event).get("correlation"), 0.0) if took else 0.0
            for _, around in open_ones:
                around.seconds += seconds
            continue
        operator = _operator(event)
        if took is None and "autograd::" not in event["name"]:  # which only calls others
            operator.seconds = _seconds(event)
        siblings = open_ones[-1][1].parts if open_ones else outermost
        siblings.append(operator)
        open_ones.append((begin + float(event["dur"]), operator))
    return outermost


def _operator(event: dict[str, Any]) -> Operator:
    carried = _of(event)
    return Operator(
        name=str(event.get("name", "")).rpartition("::")[2],
        begin=float(event["ts"]) / 1e6,
        dims=carried.get("Input Dims", ()),
        dtypes=[dtype_named(name) for name in carried.get("Input type", ())],
    )


# --- collectives ---


def _is_collective(kernel: dict[str, Any]) -> bool:
    name = str(kernel.get("name", "")).lower()
    return name.startswith(("nccl", "rccl")) or "Collective name" in _of(kernel)


def _collectives(events: Iterable[dict[str, Any]], ranks: int | None) -> Iterator[Collective]:
    """Collectives that a trace describes: kernels of NCCL, or gloo's own events on a CPU.

    Args:
        events: kernels; or all events, if there is no GPU.
        ranks: of the only group; None if there are several.
    """
    for event in events:
        carried = _of(event)
        if "Collective name" in carried and _category(event) in KERNELS:
            name = _collective(str(carried["Collective name"]))
            side = "Out" if name == "reduce_scatter" else "In"
            elements = int(carried.get(f"{side} msg nelems", 0))
            size = _size(str(carried.get("dtype", "")))
            yield Collective(name, elements * size, carried.get("Group size"), *_ends(event))
        elif str(event.get("name", "")).startswith("gloo:"):
            name = _collective(str(event["name"]).removeprefix("gloo:"))
            num_bytes = 0
            for dims, kind in zip(
                carried.get("Input Dims", ()), carried.get("Input type", ()), strict=False
            ):
                num_bytes += _elements(dims) * _size(kind)
            yield Collective(name, num_bytes, ranks, *_ends(event))


def _collective(name: str) -> str:
    """Our name of a collective, or the trace's if we have none."""
    return COLLECTIVES.get(name.replace("_", "").lower(), name)


def _size(dtype: str) -> int:
    """Bytes of an element."""
    return SIZES.get(dtype_named(dtype), 1)


def _elements(dims: Any) -> int:
    """How many elements a tensor of these sizes has."""
    elements = 1
    for size in dims:
        elements *= int(size)
    return elements


def _only_group(world: dict[str, Any]) -> int | None:
    """The number of ranks of the only group."""
    groups = world.get("pg_config") or []
    if len(groups) > 1:
        return None
    return world.get("world_size")
