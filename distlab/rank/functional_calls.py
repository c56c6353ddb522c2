"""Functional collectives, as DTensor and tensor parallel make them: noted like the calls of a process group.

Runs on every rank. Such a collective returns a new tensor, and C++ makes and waits for it, so that no method of
ProcessGroup or Work shows it. Python reaches both by operators of torch.ops; `install` puts a thin layer on these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank.activity import outwards
from distlab.rank.call_log import NOTES, Note, waiting_for
from distlab.wire.source import is_shown


def install() -> None:
    """Put the layer on the operators; a second time does nothing.

    Runs on: every rank, on its main thread.
    """
    layers = dict.fromkeys(private.FUNCTIONAL_METHODS, _collective) | {"wait_tensor": _wait}
    for name, layer in layers.items():
        operator = private.functional_operator(name)
        if operator is not None and type(operator).__module__ != __name__:
            operator.__class__ = _over(layer, type(operator))


def _over(layer: Callable[..., Any], kind: type) -> type:
    """The class of operators, whose calls pass through the layer; what else torch knows of an operator stays."""

    class Noted(kind):
        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            return layer(self.__name__, super().__call__, *args, **kwargs)

    return Noted


def _collective(name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make the call with a note of it; without where it begins nothing, as torch traces it, and on groups in Python."""
    group = args[-1] if args and not kwargs else None
    group = private.name_of(group) if isinstance(group, dist.ProcessGroup) else group
    before = private.functional_count(group)
    if before is None:
        return original(*args, **kwargs)
    note = Note(private.FUNCTIONAL_METHODS[name], group, *_as_method(name, args))
    public = hasattr(dist, note.method) and not note.method.startswith("_")
    note.op = _of_dtensor(sys._getframe(1)) or (note.method if public else name)
    NOTES.add(note)
    try:
        if NOTES.checker is not None:
            with waiting_for(note):
                NOTES.checker.call(note, _nothing).wait()
        results = original(*args)
    except Exception:
        NOTES.take_back(note)
        raise
    if private.functional_count(group) == before:
        NOTES.take_back(note)
    else:
        for result in results if isinstance(results, (list, tuple)) else [results]:
            NOTES.results[private.storage_of(result)] = note
    return results


def _as_method(name: str, args: tuple) -> tuple[tuple, dict[str, Any]]:
    """The arguments that the method of ProcessGroup would have been given, as far as a note reads them."""
    tensors, *more, _ = args
    if name == "all_to_all_single":
        return (tensors, tensors, *more), {}
    options = more[0] if name == "broadcast" else None  # the root
    if "reduce" in name:
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, more[0].upper())
    return (tensors,), {"opts": options}


def _nothing() -> torch.futures.Future[None]:
    """What the checker posts once the ranks agree; the call itself is made on the thread that asked for it."""
    done = torch.futures.Future()
    done.set_result(None)
    return done


def _of_dtensor(frame: FrameType) -> str:
    """The function of DTensor's that the learner's line calls; "" where it calls a model, a matrix product, ..."""
    inner = frame
    for outer in outwards(frame):
        if is_shown(outer.f_code.co_filename):
            break
        inner = outer
    is_dtensors = inner.f_globals.get("__name__") == private.DTENSOR_MODULE
    return inner.f_code.co_name if is_dtensors and not inner.f_code.co_name.startswith("_") else ""


def _wait(name: str, original: Callable[..., Any], tensor: Any) -> Any:
    """Wait for the collective that made the tensor; for one that was waited for, this returns at once."""
    note = NOTES.results.pop(private.storage_of(tensor), None) if NOTES.results else None
    if note is None:
        return original(tensor)
    with waiting_for(note):
        waited = original(tensor)
    note.done = True
    return waited
