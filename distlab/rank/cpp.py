"""What C++ begins in a process group, for DDP above all, and what of it Python can see.

Runs on every rank; table.py puts these functions in the place of torch's. In checked mode, what the
rank has begun before is posted first: gloo matches the calls of a group by their order.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank.checked_calls import posted
from distlab.rank.log import LOG
from distlab.rank.plugins import PLUGINS


def on_forward(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """DistributedDataParallel.forward: passes in training are counted, unless torch compiles it."""
    is_in_training = model.training and torch.is_grad_enabled()
    if is_in_training and not torch.compiler.is_compiling():
        LOG.passes.count_forward(LOG.cells, model.require_backward_grad_sync)
    return original(model, *args, **kwargs)


def on_backward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch.autograd.backward, which Tensor.backward also calls: passes are counted.

    DDP's hooks, which run in it, begin collectives in C++.
    """
    if not torch.compiler.is_compiling():
        LOG.passes.count_backward(LOG.cells)
    return on_begin_in_cpp(original, *args, **kwargs)


def on_keep_context(original: Callable[..., Any], key: str, value: Any) -> None:
    """Keep a Python object for the threads of a backward pass; its context only for those of GPUs.

    A collective that begins in the pass would keep it as well, and gloo's thread needs Python's
    lock to let go of it. If a program ends its group and its model just then, it holds that lock
    and waits for the thread: for ever.
    """
    if key != private.CONTEXT or torch.cuda.is_available():
        original(key, value)


def on_build_reducer(original: Callable[..., Any], reducer: Any, *args: Any, **kwargs: Any) -> None:
    """The constructor of DDP's Reducer, which begins collectives in its group from C++."""
    original(reducer, *args, **kwargs)
    LOG.shared_with_cpp.update(_groups_among(args))


def on_give_to_reducer(original: Callable[..., Any], reducer: Any, work: Any, *args: Any) -> None:
    """Give a Work to DDP's Reducer, which waits for it in C++: in checked mode, torch's own."""
    original(reducer, posted(work), *args)


def on_begin_in_cpp(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function that begins collectives in C++.

    It does so in a group among its arguments; without one, in those of any Reducer.
    """
    if PLUGINS.checker is not None:
        groups = _groups_among(args) or LOG.shared_with_cpp
        PLUGINS.checker.post(groups)
    return original(*args, **kwargs)


def _groups_among(args: tuple[Any, ...]) -> set[str]:
    """The names of the process groups among some arguments."""
    names = set()
    for argument in args:
        if isinstance(argument, dist.ProcessGroup):
            names.add(private.GROUP_NAMES.get(argument, ""))
    return names
