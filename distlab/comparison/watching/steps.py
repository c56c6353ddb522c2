"""Steps of optimizers: the gradients before, and the values after each.

Runs on every rank; called by watch.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from distlab.comparison.records import SeenParameter, SeenStep, Sketch
from distlab.comparison.watching.flat_parameters import FlatPart
from distlab.comparison.watching.own_gradients import OwnGradients
from distlab.comparison.watching.perturbing import Perturbation
from distlab.comparison.watching.seen_lines import learners_line
from distlab.comparison.watching.seen_tensors import has_values, seen, seen_gradient
from distlab.comparison.watching.state import OpenStep, Watching
from distlab.compat import torch_watching as private
from distlab.compat.torch import is_tracing
from distlab.rank.frames import outwards


class Steps:
    """Looks at every step of an optimizer.

    A step of the record is what all optimizers do between two backward passes: so the number of
    passes so far tells whether an optimizer begins another step or continues the newest one.
    """

    def __init__(
        self,
        watching: Watching,
        own_gradients: OwnGradients,
        perturbation: Perturbation | None,
    ) -> None:
        self._watching = watching
        self._perturbation = perturbation
        self._own_gradients = own_gradients
        self._stepping: Optimizer | None = None  # the outermost one
        self._passes_before = 0  # backward passes when it began to step
        self._passes_at_step = -1  # when the newest step began
        self._gradients: dict[int, tuple[Sketch, bool]] = {}
        self._others: dict[int, SeenParameter] = {}
        self._stepped: set[int] = set()  # ids of parameters that any optimizer has

    def install(self) -> None:
        """Begin to look."""
        patches = self._watching.patches
        patches.on_end(register_optimizer_step_pre_hook(self._before).remove)
        patches.on_end(register_optimizer_step_post_hook(self._after).remove)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or self._is_inside(optimizer):
            return
        if is_tracing(list(_parameters(optimizer))):  # it computes nothing
            return
        self._stepping = optimizer
        self._passes_before = self._watching.backward_passes
        self._gradients = {}
        if self._watching.is_full:
            return
        with self._watching.careful(f"a step of {type(optimizer).__name__}"):
            self._see_before(optimizer)

    def _see_before(self, optimizer: Optimizer) -> None:
        watching = self._watching
        for number, parameter in enumerate(_parameters(optimizer)):
            if watching.naming.is_stranger(parameter):
                name = f"parameter {number} of {type(optimizer).__name__}"
                watching.naming.add_stranger(parameter, name)
            watching.see_initial(parameter)
            if self._perturbation is not None:
                self._perturbation.change_parameter(parameter)
            self._own_gradients.look_at(parameter, parameter)
            self._stepped.add(id(parameter))
            if not has_values(parameter):
                kind = type(optimizer).__name__
                watching.note_unseen(
                    f"{kind} has parameters whose values are not there at its step."
                )
            if watching.naming.is_stranger(parameter) and private.is_spread(parameter):
                watching.record.model_parallel = True
        self._gradients = self._see_gradients(optimizer)
        self._others = {}
        for parameter in watching.naming.other_parameters(self._stepped):
            if has_values(parameter):
                self._others[id(parameter)] = seen(parameter)

    def _is_inside(self, optimizer: Optimizer) -> bool:
        """Whether another optimizer that has not ended its step makes this step."""
        outer = self._stepping
        if outer is None or outer is optimizer:
            return False
        for frame in outwards(sys._getframe(1)):
            if frame.f_code.co_name == "step" and frame.f_locals.get("self") is outer:
                return True
        return False  # its step has raised

    def _see_gradients(self, optimizer: Optimizer) -> dict[int, tuple[Sketch, bool]]:
        gradients = {}
        scale = getattr(optimizer, "grad_scale", None)
        factor = 1.0 if scale is None else 1 / float(scale)  # the optimizer itself divides by it
        for parameter in _parameters(optimizer):
            for part in self._watching.flat.get(id(parameter), []):
                own = part.gradient()
                if own is not None:
                    gradients[id(part)] = (own.scaled(factor), False)
            if parameter.grad is not None and id(parameter) not in self._watching.flat:
                sketch, is_partial = seen_gradient(parameter)
                gradients[id(parameter)] = (sketch.scaled(factor), is_partial)
        return gradients

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._stepping is not optimizer:
            return
        self._stepping = None
        if self._watching.is_full:
            if self._passes_at_step != self._watching.backward_passes:
                self._passes_at_step = self._watching.backward_passes
                self._watching.add_unkept_step()
            return
        with self._watching.careful(f"a step of {type(optimizer).__name__}"):
            self._see_after(optimizer)

    def _see_after(self, optimizer: Optimizer) -> None:
        if self._watching.backward_passes != self._passes_before:  # in a closure
            self._gradients = self._see_gradients(optimizer)
        parameters = {}
        for parameter in _parameters(optimizer):
            if id(parameter) in self._watching.flat:
                parameters.update(self._see_parts(self._watching.flat[id(parameter)]))
                continue
            gradient, is_partial = self._gradients.get(id(parameter), (None, False))
            parameters[id(parameter)] = replace(
                seen(parameter),
                gradient=gradient,
                own_gradient=self._own_gradients.take(parameter),
                gradient_is_partial=is_partial,
            )
        self._gradients = {}
        self._add(optimizer, parameters)

    def _see_parts(self, parts: list[FlatPart]) -> dict[int, SeenParameter]:
        """The parts of a flat parameter."""
        parameters = {}
        for part in parts:
            gradient, _ = self._gradients.get(id(part), (None, False))
            parameters[id(part)] = replace(part.seen(), gradient=gradient)
        return parameters

    def _add(self, optimizer: Optimizer, parameters: dict[int, SeenParameter]) -> None:
        watching = self._watching
        strangers = sum(map(watching.naming.is_stranger, _parameters(optimizer)))
        rates = _rates(optimizer)
        continues = watching.number_of_steps and self._passes_at_step == watching.backward_passes
        if continues and not (parameters.keys() & watching.steps[-1].parameters.keys()):
            step = watching.steps[-1]
            step.parameters.update(parameters)
            watching.count_numbers(parameters.values())
            for key in parameters:
                step.others.pop(key, None)
            step.seen = replace(
                step.seen,
                learning_rates=step.seen.learning_rates + rates,
                strangers=step.seen.strangers + strangers,
            )
            return
        name = type(optimizer).__name__
        self._passes_at_step = watching.backward_passes
        seen_step = SeenStep(learners_line(), name, rates, {}, strangers)
        watching.add_step(OpenStep(seen_step, parameters, self._others))


def _rates(optimizer: Optimizer) -> tuple[float, ...]:
    """The learning rates of the groups that have one; some optimizers find their own."""
    rates = []
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if isinstance(rate, (int, float, torch.Tensor)):
            rates.append(float(rate))
    return tuple(rates)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
