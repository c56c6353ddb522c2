"""What a program sends itself: activations, and gradients in a coarser type.

Runs on every rank; called by watch.py. The rank's log sees every call of the program, and of torch
in Python; what DDP sends in C++ it does not see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod

import torch

from distlab.comparison.watching import Watching
from distlab.compat.torch import in_backward
from distlab.rank.frames import outwards
from distlab.rank.log import LOG, Note
from distlab.wire.messages import MESSAGE
from distlab.wire.source import runs_learners_code

# they communicate in a forward pass, and send no activations: DDP, FSDP, SyncBatchNorm
_OF_REPLICAS = ("torch.nn.parallel", "torch.distributed.fsdp", "torch.nn.modules._functions")
_AUTOGRAD_FUNCTION = "torch.autograd.function"


class Communication:
    """Looks at every call that the rank's log notes."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching

    def install(self) -> None:
        """Begin to look."""
        self._watching.patches.replace(LOG, "add", self._on_add)

    def _on_add(self, original: Callable[[Note], None], note: Note) -> None:
        original(note)
        with self._watching.careful("communication"):
            self._look_at(note)

    def _look_at(self, note: Note) -> None:
        watching = self._watching
        if note.kind == MESSAGE:
            watching.has_messages = True
        if in_backward():
            self._look_at_types(note)
        elif _has_activations(note) and _sends_activations(watching.is_training):
            watching.record.model_parallel = True

    def _look_at_types(self, note: Note) -> None:
        """A type in which the program's own hook sends gradients."""
        watching = self._watching
        for dtype, _ in note.tensors:
            if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
                continue
            if watching.own_hook and torch.finfo(dtype).eps > watching.epsilon:
                watching.record.compression = watching.own_hook
            watching.coarsen(dtype)


def _has_activations(note: Note) -> bool:
    """Whether a call has more than one number, such as a loss that is averaged."""
    return any(prod(shape) > 1 for _, shape in note.tensors)


def _sends_activations(is_training: bool) -> bool:
    """Whether a function of autograd communicates, or in training the program in a module."""
    for frame in outwards(sys._getframe(1)):
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OF_REPLICAS):
            return False
        if module == _AUTOGRAD_FUNCTION:
            return True
        if is_training and runs_learners_code(frame):
            return True
    return False
