"""The rules that arguments must keep, checked before anything is started or sent; called by cluster.py and magics.py.

Runs on the notebook's kernel. Every check raises `ArgumentError` in the house form, or returns the value to use.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from distlab.errors import refuse
from distlab.rendezvous import INIT_METHODS

# after the first all_reduce: a forked rank shares most of its pages, others are a Python of their own each
MEGABYTES_PER_RANK = {"fork": 60}
MEGABYTES_PER_PYTHON = 190
MPI_BACKEND = "mpi4py"  # distlab's own, in mpi_backend.py


def check_size(n: Any, engines: str) -> int:
    """A number of ranks: whole, 1 or more, and as many as fit into the memory that is free with this launcher."""
    import psutil

    if not _is_whole(n):
        refuse("n", "a whole number of ranks", n, "Call Cluster(4).", wrong_type=True)
    if n < 1:
        refuse("n", "1 or more", n, "Call Cluster(4).")
    free = psutil.virtual_memory().available / 1e6
    each = MEGABYTES_PER_RANK.get(engines, MEGABYTES_PER_PYTHON)
    most = max(2, int(free // each))
    if n > most:
        why = f"{free / 1000:.0f} GB of memory are free here and a rank takes about {each} MB."
        refuse("n", f"at most {most} on this machine", n, f"{why} Call Cluster(4).")
    return n


def check_seconds(name: str, value: Any) -> float:
    """A number of seconds above 0."""
    wrong_type = isinstance(value, bool) or not isinstance(value, (int, float))
    if wrong_type or not 0 < value < float("inf"):
        refuse(name, "a number of seconds above 0", value, f"Give for example {name}=5.", wrong_type)
    return float(value)


def check_threads(threads: Any) -> int | None:
    """A number of threads, or None."""
    if threads is not None and (not _is_whole(threads) or threads < 1):
        refuse("threads", "None or a whole number of 1 or more", threads, "Call Cluster(n, threads=1).")
    return threads


def check_init_method(init_method: Any) -> str:
    """One of `rendezvous.INIT_METHODS`, which may end in "://" as torch writes them."""
    if isinstance(init_method, str):
        init_method = init_method.removesuffix("://")
    if init_method not in INIT_METHODS:
        rule = f"one of {', '.join(map(repr, INIT_METHODS))}"
        refuse("init_method", rule, init_method, 'Call Cluster(n) or Cluster(n, init_method="tcp").')
    return init_method


def check_backend(backend: Any, n: int) -> str:
    """A backend that can serve `n` ranks here, in small letters; torch is imported for others than gloo and mpi4py."""
    asked = backend.lower() if isinstance(backend, str) else ""
    if asked in ("gloo", MPI_BACKEND):
        return asked
    if asked == "nccl":
        return check_nccl(n)
    import torch.distributed as dist

    known = [name for name in dist.Backend.backend_list if name not in ("undefined", "fake")]
    here = [name for name in known if dist.is_backend_available(name)]
    if asked not in here:
        rule = f"a backend that this torch has ({', '.join(map(repr, here))})"
        refuse("backend", rule, backend, _instead_of(asked, known))
    return asked


def _instead_of(backend: str, known: Sequence[str]) -> str:
    """What to do where a backend was asked for that is not there."""
    gloo = 'Call Cluster(n) or Cluster(n, backend="gloo").'
    built = {
        "mpi": f"Only a torch that was built from source beside an MPI has it. {gloo} "
        f'Cluster(n, engines="mpi", backend="{MPI_BACKEND}") runs on MPI without it.',
        "ucc": f"Only a torch that was built from source with UCC has it. {gloo} It has the same functions.",
    }
    return built.get(backend, f"This torch was built without it. {gloo}" if backend in known else gloo)


def check_mpi(backend: str, engines: str) -> None:
    """The backend over mpi4py, as `check_backend` returns it, goes with ranks that mpiexec starts."""
    if backend == MPI_BACKEND and engines != "mpi":
        call = f'Call Cluster(n, engines="mpi", backend="{MPI_BACKEND}").'
        refuse("engines", f'"mpi" for backend "{MPI_BACKEND}"', engines, f"MPI knows only what mpiexec starts. {call}")


def check_nccl(n: int) -> str:
    """nccl, where this torch has it and there is a GPU for each of `n` ranks."""
    import torch

    from distlab.devices import why_not_nccl

    why = why_not_nccl(n)
    if why:
        gpus = torch.cuda.device_count()
        fewer = f'Cluster({gpus}, backend="nccl"), or ' if 0 < gpus < n else ""
        takes = ", which takes CUDA tensors too" if gpus else ""
        advice = f"{why} Call {fewer}Cluster({n}) for gloo{takes}."
        refuse("backend", "one that can serve the ranks here", "nccl", advice)
    return "nccl"


def check_ranks(ranks: Any, n: int) -> list[int]:
    """Different ranks of a cluster of `n`; all of them for None."""
    if ranks is None:
        return list(range(n))
    refuse_ranks = functools.partial(
        refuse, "ranks", f"a list of different ranks from 0 to {n - 1}", ranks, "Leave ranks out to mean all of them."
    )
    if isinstance(ranks, (str, bytes)) or not isinstance(ranks, Sequence):
        refuse_ranks(wrong_type=True)
    chosen = list(ranks)
    in_range = all(_is_whole(rank) and 0 <= rank < n for rank in chosen)
    if not chosen or not in_range or len(set(chosen)) < len(chosen):
        refuse_ranks()
    return chosen


def check_traced(ranks: Any, traced: Sequence[int]) -> list[int]:
    """Different ranks of those that a trace is of; all of them for None."""
    if ranks is None:
        return list(traced)
    chosen = list(ranks) if isinstance(ranks, Sequence) and not isinstance(ranks, (str, bytes)) else None
    if not chosen or not {*chosen} <= {*traced} or len({*chosen}) < len(chosen):
        rule = f"a list of different ranks of the trace ({', '.join(map(str, traced))})"
        refuse("ranks", rule, ranks, "Leave ranks out to mean all of them.", wrong_type=chosen is None)
    return chosen


def check_window(window: Any, last: float) -> tuple[float, float]:
    """A first and a last millisecond, of which some lie within a trace that lasts `last` milliseconds."""
    rule = f"two times (start, end) in milliseconds, start before end, that overlap 0 to {last:.4g}"
    example = f"Call plot(window=({0.25 * last:.3g}, {0.5 * last:.3g}))."
    if not isinstance(window, Sequence) or len(window) != 2 or not all(_is_number(time) for time in window):
        refuse("window", rule, window, example, wrong_type=True)
    start, end = map(float, window)
    if not start < end or end <= 0 or start >= last:
        refuse("window", rule, window, example)
    return start, end


def check_name(name: Any, example: str) -> str:
    """The name of a variable; `example` is a call that has one."""
    if not isinstance(name, str) or not name.isidentifier():
        refuse("names", "names of variables", name, f"Call {example}.", wrong_type=not isinstance(name, str))
    return name


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
