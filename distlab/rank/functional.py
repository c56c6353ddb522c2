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
from distlab.rank.frames import module_and_function
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
        in_order = private.by_position(operator, args, kwargs)
        if in_order is None:
            return original(operator, *args, **kwargs)
        args = in_order
    group = _name_of_group(args[-1]) if args else ""
    for of_parent in LOG.of_parent:
        if private.GROUP_NAMES.get(of_parent) == group:
            LOG.check_not_of_parent(of_parent)
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
    if private.functional_count(group) == before:  # nothing was begun
        LOG.take_back(note)
        return result
    tensors = result if isinstance(result, list) else [result]
    for tensor in tensors:
        LOG.remember_result(_key_of(tensor), note)
    return result


def on_wait_tensor(original: Callable[..., Any], operator: Any, tensor: Any) -> Any:
    """The operator that waits for the collective that made a tensor.

    The second time it returns at once.
    """
    make = functools.partial(original, operator, tensor)
    if not LOG.results:
        return make()
    note = LOG.results.pop(_key_of(tensor), None)
    if note is None:
        return make()
    return wait_for(tensor, note, make)


def _key_of(tensor: Any) -> int:
    """What the result of a functional collective is known by, for C++ and for the log."""
    return private.key_of(tensor.untyped_storage())


def _name_of_group(group: dist.ProcessGroup | str) -> str:
    """The name of the group that an operator is given, as a group or as its name."""
    if isinstance(group, dist.ProcessGroup):
        return private.GROUP_NAMES.get(group, "")
    return group


def _note_of_operator(name: str, group: str, args: tuple[Any, ...]) -> Note:
    """The note of an operator's call, as if the method of ProcessGroup had been called."""
    tensors, *more, _ = args  # the last one is the group
    method = private.FUNCTIONAL_METHODS[name]
    if name == "all_to_all_single":
        note = note_of(method, group, (tensors, tensors, *more), {})
    else:
        note = note_of(method, group, (tensors,), {"opts": _options_of_operator(name, more)})
    note.op = _function_of_dtensor(sys._getframe(1)) or _public_name(note.method, name)
    return note


def _public_name(method: str, operator_name: str) -> str:
    """The name by which a learner knows a collective: that of dist's function, if there is one."""
    if hasattr(dist, method) and not method.startswith("_"):
        return method
    return operator_name


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
    if called is None:
        return ""
    module, name = module_and_function(called)
    if module != private.DTENSOR_MODULE or name.startswith("_"):
        return ""
    return name
