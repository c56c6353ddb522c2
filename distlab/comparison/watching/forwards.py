"""Calls of modules: which are outermost, with which rows, through which wrapper.

Runs on every rank; called by watch.py.

The class's own call is replaced, instead of using torch's global hooks: a module that was compiled
by its own method compile() calls those inside of what is compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from distlab.comparison.records import SeenForward
from distlab.comparison.watching.called_modules import CalledModules
from distlab.comparison.watching.data_rows import data_of, fingerprints, has_received
from distlab.comparison.watching.perturbing import Perturbation
from distlab.comparison.watching.randomness import random_states
from distlab.comparison.watching.seen_lines import is_called_by, learners_line
from distlab.comparison.watching.state import Watching
from distlab.comparison.watching.wrappers import Wrappers
from distlab.compat import torch_watching as private
from distlab.compat.torch import in_backward, is_tracing
from distlab.wire.source import Line

_PIPELINES = "torch.distributed.pipelining"


@dataclass
class _Outermost:
    """The call of an outermost module that is under way; see SeenForward."""

    module: nn.Module
    step: int
    has_gradients: bool
    rows: tuple[bytes, ...] = ()
    row_shape: tuple[int, ...] = ()
    line: Line | None = None
    wrapper: str = ""
    bypassed: bool = False
    averages: bool = True

    def seen(self) -> SeenForward:
        return SeenForward(
            step=self.step,
            training=self.module.training,
            rows=self.rows,
            row_shape=self.row_shape,
            line=self.line,
            wrapper=self.wrapper,
            bypassed=self.bypassed,
            averages=self.averages,
            has_gradients=self.has_gradients,
        )


class Forwards:
    """Looks at every call of a module."""

    def __init__(
        self,
        watching: Watching,
        wrappers: Wrappers,
        modules: CalledModules,
        perturbation: Perturbation | None,
    ) -> None:
        self._watching = watching
        self._wrappers = wrappers
        self._modules = modules
        self._later_layers: set[int] = set()  # ids of modules that got activations
        self._newest_result: weakref.ref[torch.Tensor] | None = None
        self._perturbation = perturbation

    def install(self) -> None:
        """Begin to look."""
        self._watching.patches.replace(nn.Module, "__call__", self._on_call)

    def _on_call(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        if in_backward():  # computed again
            return original(module, *args, **kwargs)
        stack = self._watching.modules
        if not stack:
            if not _is_looked_at(module, args, kwargs):
                return original(module, *args, **kwargs)
            args, kwargs = self._begin(module, args, kwargs)
        self._look_at_wrapper(stack, module)
        states = self._random_states(stack)
        stack.append(module)
        try:
            result = original(module, *args, **kwargs)
        finally:
            stack.pop()
            if not stack:
                self._watching.record.forwards.append(self._watching.thread.outermost.seen())
        self._look_at_draws(states)
        if isinstance(result, torch.Tensor):
            self._watching.coarsen(result.dtype)
            if not stack:
                self._newest_result = weakref.ref(result)
        return result

    def _begin(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """An outermost module is called; returns the arguments to call it with."""
        watching = self._watching
        call = _Outermost(module, watching.number_of_steps, torch.is_grad_enabled())
        watching.thread.outermost = call
        with watching.careful(f"a call of {type(module).__name__}"):
            call.line = learners_line()
            if is_called_by(_PIPELINES) or (watching.has_messages and has_received(args, kwargs)):
                watching.record.model_parallel = True
            self._modules.look_at(module)
            data = self._data(module, args, kwargs)
            if data is not None:
                call.rows = fingerprints(data)
                call.row_shape = tuple(data.shape[1:])
            if self._perturbation is not None:
                return self._perturbation.perturb(module, data, args, kwargs)
        return args, kwargs

    def _data(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor | None:
        """What has the rows. Without gradients, activations look like data."""
        data = data_of((args, kwargs))
        if torch.is_grad_enabled():
            if data is None:
                self._later_layers.add(id(module))
            return data
        if id(module) in self._later_layers:
            return None
        if self._newest_result is not None and data is self._newest_result():
            return None
        return data

    def _random_states(self, stack: list[nn.Module]) -> bytes | None:
        """The states of the random numbers before an outermost module trains."""
        if stack or not self._watching.thread.outermost.has_gradients:
            return None
        return random_states()

    def _look_at_draws(self, before: bytes | None) -> None:
        """Note that a module has drawn random numbers; dropout that was kept out draws none."""
        if before is None or before == random_states():
            return
        line = self._watching.thread.outermost.line
        if line not in self._watching.record.draws:
            self._watching.record.draws.append(line)

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


def _is_looked_at(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an outermost call computes something with parameters."""
    if next(module.parameters(), None) is None or private.is_rehearsing_pipeline():
        return False
    return not private.is_transforming() and not is_tracing((args, kwargs))
