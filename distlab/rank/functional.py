"""Wrappers of functional collectives, as DTensor and tensor parallel make them: each is noted in the log.

Runs on every rank; hooks.py puts them in place. Such a collective returns a new tensor, and C++ makes and waits for it,
so that no method of ProcessGroup or Work shows it. Python reaches both by operators of torch.ops.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank.log import LOG, Note, waits
from distlab.wire.messages import is_shown


def collective(_: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that makes a collective, with a note of each call.

    No note where it begins nothing, as while torch traces it, and on groups in Python, whose methods make one.
    """

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        group = args[-1] if args and not kwargs else None
        group = private.name_of(group) if isinstance(group, dist.ProcessGroup) else group
        before = private.functional_count(group)
        if before is None:
            return original(self, *args, **kwargs)
        name = self.__name__
        note = Note.of_group(private.FUNCTIONAL_METHODS[name], group, *_as_method(name, args))
        public = hasattr(dist, note.method) and not note.method.startswith("_")
        note.op = _of_dtensor(sys._getframe(1)) or (note.method if public else name)
        LOG.add(note)
        try:
            if LOG.checker is not None:
                with waits(note):
                    LOG.checker.call(note, _completed).wait()
            results = original(self, *args)
        except Exception:
            LOG.take_back(note)
            raise
        if private.functional_count(group) == before:
            LOG.take_back(note)
        else:
            for result in results if isinstance(results, (list, tuple)) else [results]:
                LOG.results[private.storage_of(result)] = note
        return results

    return call


def wait_tensor(_: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The operator that waits for the collective that made a tensor; the second time it returns at once."""

    @functools.wraps(original)
    def wait(self: Any, tensor: Any) -> Any:
        note = LOG.results.pop(private.storage_of(tensor), None) if LOG.results else None
        if note is None:
            return original(self, tensor)
        with waits(note):
            waited = original(self, tensor)
        note.done = True
        return waited

    return wait


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


def _completed() -> torch.futures.Future[None]:
    """What the checker posts once the ranks agree; the call itself is made on the thread that asked for it."""
    done = torch.futures.Future()
    done.set_result(None)
    return done


def _of_dtensor(frame: FrameType | None) -> str:
    """The function of DTensor's that the learner's line calls; "" where it calls a model, a matrix product, ..."""
    inner = None
    while frame is not None and not is_shown(frame.f_code.co_filename):
        inner, frame = frame, frame.f_back
    is_dtensors = inner is not None and inner.f_globals.get("__name__") == private.DTENSOR_MODULE
    return inner.f_code.co_name if is_dtensors and not inner.f_code.co_name.startswith("_") else ""
