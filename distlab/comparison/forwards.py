"""Calls of modules: which are outermost, with which rows, through which wrapper.

Runs on every rank; called by watch.py.

The class's own call is replaced, and not torch's global hooks used: those make torch.compile trace
them, and do not see a module that was compiled by its own method compile().
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from distlab.comparison.data_rows import data_of, fingerprints
from distlab.comparison.naming import plain_name
from distlab.comparison.perturbing import Perturbation
from distlab.comparison.records import SeenForward
from distlab.comparison.seen_lines import learners_line
from distlab.comparison.watching import Watching
from distlab.comparison.wrappers import Wrappers
from distlab.compat.torch import in_backward, is_tracing

# of nn.SyncBatchNorm none is a base
_LOCAL_STATISTICS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass
class _Outermost:
    """The call of an outermost module that is under way."""

    wrapper: str = ""
    bypassed: bool = False
    averages: bool = True


class Forwards:
    """Looks at every call of a module."""

    def __init__(self, watching: Watching, wrappers: Wrappers) -> None:
        self._watching = watching
        self._wrappers = wrappers
        self._perturbation: Perturbation | None = None
        if watching.options.perturbation is not None:
            self._perturbation = Perturbation(watching, watching.options.perturbation)
        self._with_statistics: set[int] = set()  # modules in which they were looked for

    def install(self) -> None:
        """Begin to look."""
        self._watching.patches.replace(nn.Module, "__call__", self.on_call)

    def on_call(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        """A module is called."""
        if torch.compiler.is_compiling() or in_backward():
            # traced, or computed again for the backward pass
            return original(module, *args, **kwargs)
        stack = self._stack()
        if stack:
            return self._inner(stack, original, module, args, kwargs)
        if next(module.parameters(), None) is None:
            return original(module, *args, **kwargs)
        return self._outermost(stack, original, module, args, kwargs)

    def _stack(self) -> list[nn.Module]:
        """The modules that this thread is in, outermost first."""
        thread = self._watching.thread
        if not hasattr(thread, "modules"):
            thread.modules = []
            thread.outermost = None
        return thread.modules

    def _inner(
        self,
        stack: list[nn.Module],
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        self._look_at_wrapper(stack, module)
        stack.append(module)
        try:
            result = original(module, *args, **kwargs)
        finally:
            stack.pop()
        if isinstance(result, torch.Tensor):
            self._watching.coarsen(result.dtype)
        return result

    def _outermost(
        self,
        stack: list[nn.Module],
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        watching = self._watching
        if is_tracing((args, kwargs)):
            return original(module, *args, **kwargs)
        call = _Outermost()
        watching.thread.outermost = call
        data = data_of((args, kwargs))
        rows = () if data is None else fingerprints(data)
        line = learners_line()
        self._before(module)
        self._look_at_wrapper(stack, module)
        if self._perturbation is not None:
            args, kwargs = self._perturbation.perturb(module, data, args, kwargs)
        steps = len(watching.steps)
        has_gradients = torch.is_grad_enabled()
        stack.append(module)
        try:
            result = original(module, *args, **kwargs)
        finally:
            stack.pop()
            watching.record.forwards.append(
                SeenForward(
                    step=steps,
                    training=module.training,
                    rows=rows,
                    line=line,
                    wrapper=call.wrapper,
                    bypassed=call.bypassed,
                    averages=call.averages,
                    has_gradients=has_gradients,
                )
            )
        if isinstance(result, torch.Tensor):
            watching.coarsen(result.dtype)
        return result

    def _before(self, module: nn.Module) -> None:
        """Look at the parameters and buffers of an outermost module."""
        watching = self._watching
        watching.naming.add_module(module)
        for parameter in module.parameters():
            watching.see_initial(parameter)
            watching.coarsen(parameter.dtype)
        if torch.is_autocast_enabled("cpu"):
            watching.coarsen(torch.get_autocast_dtype("cpu"))
        if module.training and id(module) not in self._with_statistics:
            self._with_statistics.add(id(module))
            self._look_for_statistics(module)

    def _look_for_statistics(self, module: nn.Module) -> None:
        for name, inner in module.named_modules():
            if isinstance(inner, _LOCAL_STATISTICS) and inner.training:
                plain = plain_name(name)
                if plain not in self._watching.record.local_statistics:
                    self._watching.record.local_statistics.append(plain)

    def _look_at_wrapper(self, stack: list[nn.Module], module: nn.Module) -> None:
        """Note DDP on the way, or that the way goes past it."""
        call = self._watching.thread.outermost
        if isinstance(module, nn.parallel.DistributedDataParallel):
            call.wrapper = type(module).__name__
            call.averages = module.require_backward_grad_sync
            return
        wrapper = self._wrappers.around(module)
        if wrapper is not None and not any(outer is wrapper for outer in stack):
            call.bypassed = True
