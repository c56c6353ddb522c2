"""Backward passes: the loss that each begins from, and the targets that were counted.

Runs on every rank; called by watch.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from distlab.comparison.records import SeenBackward
from distlab.comparison.watching.seen_lines import learners_line
from distlab.comparison.watching.state import Watching
from distlab.compat import torch_watching as private
from distlab.compat.torch import in_backward, is_tracing

_IGNORED = -100  # what these losses ignore if not told otherwise


class Losses:
    """Looks at every backward pass, and at the losses that count targets."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._targets: int | None = None  # since the last backward pass

    def install(self) -> None:
        """Begin to look."""
        patches = self._watching.patches
        patches.replace(torch.autograd, "backward", self._on_backward)
        patches.replace(torch.autograd, "grad", self._on_grad)
        for name in private.LOSSES_OF_TARGETS:
            patches.replace(private.LOSSES, name, self._on_loss)

    def _on_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if _is_a_training_pass():
            tensors = args[0] if args else kwargs.get("tensors")
            given = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
            self._note(tensors, given)
        return original(*args, **kwargs)

    def _on_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """autograd.grad, where a program computes the gradients of parameters with it."""
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        if _is_a_training_pass() and _are_leaves(inputs):
            outputs = args[0] if args else kwargs.get("outputs")
            given = args[2] if len(args) > 2 else kwargs.get("grad_outputs")
            self._note(outputs, given)
        return original(*args, **kwargs)

    def _note(self, tensors: Any, given: Any) -> None:
        if _have_only_shapes(tensors):
            return
        watching = self._watching
        watching.backward_passes += 1
        with watching.careful("a backward pass"):
            self._look_at(tensors, given)

    def _look_at(self, tensors: Any, given: Any) -> None:
        watching = self._watching
        if watching.has_messages and _are_activations(tensors, given):
            watching.record.model_parallel = True
        watching.record.backwards.append(
            SeenBackward(
                step=watching.number_of_steps,
                loss=_number(tensors, given),
                targets=self._targets,
                line=learners_line(),
            )
        )
        self._targets = None

    def _on_loss(
        self,
        original: Callable[..., Any],
        input: torch.Tensor,
        target: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        loss = original(input, target, *args, **kwargs)
        is_of_training = isinstance(loss, torch.Tensor) and loss.requires_grad
        if is_of_training and _is_a_training_pass() and not is_tracing([loss]):
            ignored = args[2] if len(args) > 2 else _IGNORED
            with self._watching.careful("the targets of a loss"):
                self._targets = (self._targets or 0) + _counted(target, ignored)
        return loss


def _is_a_training_pass() -> bool:
    """Whether what happens now is for the gradients of a step, once, with real numbers."""
    if in_backward() or private.is_transforming():
        return False
    return not private.is_rehearsing_pipeline()


def _are_leaves(inputs: Any) -> bool:
    """Whether these are parameters, or at least tensors that nothing has computed."""
    tensors = inputs if isinstance(inputs, (tuple, list)) else [inputs]
    return all(isinstance(one, torch.Tensor) and one.is_leaf for one in tensors)


@torch.no_grad()
def _number(tensors: Any, given: Any) -> float | None:
    """The loss that a backward pass begins from; None if that is no single number."""
    if isinstance(tensors, (tuple, list)):
        if len(tensors) != 1:
            return None
        tensors = tensors[0]
    if given is not None and any(one is not None for one in _as_list(given)):
        return None
    if not isinstance(tensors, torch.Tensor) or tensors.numel() != 1:
        return None
    if private.is_partial(tensors):
        return None
    return float(private.own_part(tensors))


def _have_only_shapes(tensors: Any) -> bool:
    """Whether no number is computed."""
    given = _as_list(tensors)
    return is_tracing(given) or all(one.device.type == "meta" for one in given)


def _are_activations(tensors: Any, given: Any) -> bool:
    """Whether a backward pass begins from gradients that came from elsewhere."""
    gradients = [one for one in _as_list(given) if one is not None]
    return bool(gradients) and any(one.numel() > 1 for one in _as_list(tensors))


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (tuple, list)) else [given]


@torch.no_grad()
def _counted(target: torch.Tensor, ignored: int) -> int:
    """How many targets a loss counts."""
    own = private.own_part(target)
    if own.is_floating_point():  # probabilities of classes
        return len(own)
    return int((own != ignored).sum())
