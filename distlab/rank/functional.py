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
from distlab.rank.hooks import make_noted, note_of, wait_for
from distlab.rank.log import LOG, Note
from distlab.rank.plugins import PLUGINS
from distlab.wire.source import runs_learners_code


def on_functional(original: Callable[..., Any], operator: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator that makes a collective, with a note of each call.

    No note if it begins nothing, as while torch traces it, and on groups in Python, whose methods
    make one.
    """
    if kwargs:
        args = private.by_position(operator, args, kwargs)
    group = _name_of_group(args[-1]) if args else ""
    for one in LOG.of_parent:
        if private.GROUP_NAMES.get(one) == group:
            LOG.check_not_of_parent(one)
    before = private.functional_count(group)
    if before is None:
        return original(operator, *args)
    LOG.shared_with_cpp.add(group)
    if private.is_tracing(args):  # the sizes may be symbols, which a note would make numbers of
        return original(operator, *args)
    note = _note_of_operator(operator.__name__, group, args)
    if PLUGINS.checker is not None:
        PLUGINS.checker.post([group])
    result = make_noted(note, functools.partial(original, operator, *args))
    if private.functional_count(group) == before:
        LOG.take_back(note)
        return result
    for one in result if isinstance(result, list) else [result]:
        LOG.remember_result(private.key_of(one.untyped_storage()), note)
    return result


def on_wait_tensor(original: Callable[..., Any], operator: Any, tensor: Any) -> Any:
    """The operator that waits for the collective that made a tensor.

    The second time it returns at once.
    """
    make = functools.partial(original, operator, tensor)
    if not LOG.results:
        return make()
    note = LOG.results.pop(private.key_of(tensor.untyped_storage()), None)
    return make() if note is None else wait_for(tensor, note, make)


def _name_of_group(group: Any) -> Any:
    """The name of the group that an operator is given, as a group or as its name."""
    return private.GROUP_NAMES.get(group, "") if isinstance(group, dist.ProcessGroup) else group


def _note_of_operator(name: str, group: str, args: tuple[Any, ...]) -> Note:
    """The note of an operator's call, as if the method of ProcessGroup had been called."""
    tensors, *more, _ = args
    method = private.FUNCTIONAL_METHODS[name]
    if name == "all_to_all_single":
        note = note_of(method, group, (tensors, tensors, *more), {})
    else:
        note = note_of(method, group, (tensors,), {"opts": _options_of_operator(name, more)})
    is_public = hasattr(dist, note.method) and not note.method.startswith("_")
    note.op = _function_of_dtensor(sys._getframe(1)) or (note.method if is_public else name)
    return note


def _options_of_operator(name: str, given: list[Any]) -> Any:
    """What the options of the method would say: the root of a broadcast, or the operation."""
    if name == "broadcast":
        return private.whole(given[0])
    if "reduce" not in name:
        return None
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, given[0].upper())
    return options


def _function_of_dtensor(frame: FrameType | None) -> str:
    """The function of DTensor's that the learner's line calls.

    "" where the line calls something else, such as a model or a matrix product.
    """
    called = None
    while frame is not None and not runs_learners_code(frame):
        called = frame
        frame = frame.f_back
    if called is None or called.f_globals.get("__name__") != private.DTENSOR_MODULE:
        return ""
    name = called.f_code.co_name
    return "" if name.startswith("_") else name
