"""What every all-reduce here shares: arguments and their rules, and how two tensors are combined.

Runs on every rank. An algorithm is written as `core(flat, combine, group)`; `all_reduce` makes the
public function `fn(tensor, op=SUM, group=None)` of it, in place and on every rank of the group,
like `dist.all_reduce`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from distlab.arguments import refuse

Combine = Callable[..., torch.Tensor]  # combine(a, b, out=a)
Core = Callable[[torch.Tensor, Combine, Any], None]  # the last is the group

COMBINE: dict[Any, Combine] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}


def all_reduce(core: Core) -> Callable[..., None]:
    """The public function of an algorithm; its docstring is the algorithm's, and that of `call`.

    Runs on: where the algorithm is defined.
    """

    def call(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        """Runs on: every rank of the group (a rank that skips it hangs the rest until the timeout).

        Args:
            tensor: contiguous, on the CPU, of any shape, also empty, and of any type that torch can
                combine; changed in place. It must have the same size and type on every rank.
            op: SUM, PRODUCT, MIN or MAX. The SUM of bool is True where any is. MIN and MAX are NaN
                where any is.
            group: a process group that this rank is in; None for the default one.

        Raises:
            ArgumentError: an argument breaks its rule; nothing was sent. ValueError: there is no
                process group.
        """
        _refuse_wrong_arguments(tensor, op, group)
        flat = tensor.detach().view(-1)
        if dist.get_world_size(group) > 1 and flat.numel():
            core(flat, COMBINE[op], group or dist.group.WORLD)

    shared = inspect.getdoc(call)
    signature = inspect.signature(call)
    functools.update_wrapper(call, core)
    call.__doc__ = f"{inspect.getdoc(core)}\n\n{shared}"
    # help() and inspect would else follow __wrapped__ to the signature of the core
    vars(call)["__signature__"] = signature
    return call


def _refuse_wrong_arguments(tensor: Any, op: Any, group: Any) -> None:
    """Refuse arguments that break their rules."""
    if not isinstance(tensor, torch.Tensor):
        refuse("tensor", "a torch.Tensor", tensor, "Call fn(torch.ones(4)).", wrong_type=True)
    is_dense = tensor.layout is torch.strided
    if not is_dense or tensor.device.type != "cpu" or not tensor.is_contiguous():
        refuse(
            "tensor",
            "dense, on the CPU and contiguous, its elements one after another in memory",
            f"{tuple(tensor.shape)}, {tensor.layout}, on {tensor.device}",
            "Call c = tensor.to_dense().cpu().clone(memory_format=torch.contiguous_format), "
            "then fn(c).",
        )
    if op not in COMBINE:
        rule = "dist.ReduceOp.SUM, PRODUCT, MIN or MAX"
        refuse("op", rule, op, "Call fn(tensor, dist.ReduceOp.SUM).")
    if dist.get_rank(group) < 0:
        rule = "a process group that this rank is in"
        refuse("group", rule, group, "Make the call only on its ranks.")
