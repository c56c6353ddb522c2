"""Functional collectives, as DTensor makes them: each is noted, and so is each wait for one.

Runs on every rank; table.py puts these functions in the place of the operators of torch.ops, by
which Python reaches what C++ makes and waits for.
"""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank.hooks import _added, _wait, note_of
from distlab.rank.log import LOG, Note
from distlab.rank.plugins import PLUGINS
from distlab.wire.source import is_learners


def on_functional(original: Callable[..., Any], operator: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator that makes a collective, with a note of each call.

    No note if it begins nothing, as while torch traces it, and on groups in Python, whose methods
    make one.
    """
    group = args[-1] if args and not kwargs else None
    group = private.GROUP_NAMES.get(group, "") if isinstance(group, dist.ProcessGroup) else group
    for one in LOG.of_parent:
        if private.GROUP_NAMES.get(one) == group:
            LOG.check_not_of_parent(one)
    before = private.functional_count(group)
    if before is None:
        return original(operator, *args, **kwargs)
    LOG.shared_with_cpp.add(group)
    if private.is_tracing(args):  # the sizes may be symbols, which a note would make numbers of
        return original(operator, *args, **kwargs)
    note = _note_of_operator(operator.__name__, group, args)
    if PLUGINS.checker is not None:
        PLUGINS.checker.post([group])
    result = _added(note, functools.partial(original, operator, *args))
    if private.functional_count(group) == before:
        LOG.take_back(note)
    else:
        for one in result if isinstance(result, list) else [result]:
            LOG.remember_result(private.key_of(one.untyped_storage()), note)
    return result


def on_wait_tensor(original: Callable[..., Any], operator: Any, tensor: Any) -> Any:
    """The operator that waits for the collective that made a tensor; the second time it returns at
    once.
    """
    make = functools.partial(original, operator, tensor)
    note = LOG.results.pop(private.key_of(tensor.untyped_storage()), None) if LOG.results else None
    return make() if note is None else _wait(tensor, note, make)


def _note_of_operator(name: str, group: str, args: tuple) -> Note:
    """The note of an operator's call, with the arguments that the method of ProcessGroup would have
    been given.
    """
    tensors, *more, _ = args
    options = private.whole(more[0]) if name == "broadcast" else None  # the root
    if "reduce" in name:
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, more[0].upper())
    given, opts = (
        ((tensors, tensors, *more), {})
        if name == "all_to_all_single"
        else ((tensors,), {"opts": options})
    )
    note = note_of(private.FUNCTIONAL_METHODS[name], group, given, opts)
    public = hasattr(dist, note.method) and not note.method.startswith("_")
    note.op = _of_dtensor(sys._getframe(1)) or (note.method if public else name)
    return note


def _of_dtensor(frame: FrameType | None) -> str:
    """The function of DTensor's that the learner's line calls; "" where it calls a model, a matrix
    product, ...
    """
    inner = None
    while frame is not None and not is_learners(frame.f_code.co_filename):
        inner, frame = frame, frame.f_back
    is_dtensors = inner is not None and inner.f_globals.get("__name__") == private.DTENSOR_MODULE
    return inner.f_code.co_name if is_dtensors and not inner.f_code.co_name.startswith("_") else ""
