"""What a program sends itself: activations, and gradients in a coarser type.

Runs on every rank; called by watch.py. The rank's log sees every call of the program, and of torch
in Python; what DDP sends in C++ it does not see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod

import torch

from distlab.comparison.watching.state import Watching
from distlab.compat.torch import in_backward
from distlab.rank.frames import outwards
from distlab.rank.log import LOG, Note
from distlab.wire.messages import MESSAGE
from distlab.wire.source import runs_learners_code

# they communicate in a forward pass, and send no activations: DDP, FSDP, SyncBatchNorm
_OF_REPLICAS = ("torch.nn.parallel", "torch.distributed.fsdp", "torch.nn.modules._functions")
_AUTOGRAD_FUNCTION = "torch.autograd.function"
_CHECKPOINTS = "torch.utils.checkpoint"  # one of its functions calls whole modules


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
        elif _sends_activations(_most_numbers(note), watching.rows_in_training):
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


def _most_numbers(note: Note) -> int:
    """How many numbers the largest tensor of a call has."""
    return max((prod(shape) for _, shape in note.tensors), default=0)


def _sends_activations(numbers: int, rows: int | None) -> bool:
    """Whether a function of autograd communicates, or in training the program in a module.

    An averaged loss is one number. Metrics are several, but hardly more than there are rows.

    Args:
        numbers: that are sent.
        rows: of the module's data; None if no module is trained here.
    """
    inner = ""  # the module whose function the frame has called
    is_programs = False
    for frame in outwards(sys._getframe(1)):
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OF_REPLICAS) and not is_programs:
            return False
        if module == _AUTOGRAD_FUNCTION and inner != _CHECKPOINTS:
            return numbers > 1
        is_programs = is_programs or runs_learners_code(frame)
        inner = module
    return is_programs and rows is not None and numbers > max(rows, 1)
