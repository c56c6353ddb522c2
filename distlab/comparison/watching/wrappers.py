"""DistributedDataParallel: which modules it wraps, and how it averages.

Runs on every rank; called by watch.py and forwards.py.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distlab.comparison.watching.state import Watching
from distlab.compat import torch_watching as private

# module of torch's hooks, and those in it that change no gradient
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
_EXACT_HOOKS = ("allreduce_hook", "noop_hook")


class Wrappers:
    """Knows every DistributedDataParallel of this rank."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._inside: dict[
            int, weakref.ref[DistributedDataParallel]
        ] = {}  # by the id of a module in it

    def install(self) -> None:
        """Begin to look."""
        patches = self._watching.patches
        patches.replace(*private.MAKES_DDP, self._on_made)
        patches.replace(DistributedDataParallel, "register_comm_hook", self._on_hook)

    def find_earlier(self) -> None:
        """Find those that were made before anybody looked."""
        for found in gc.get_objects():
            if issubclass(type(found), DistributedDataParallel):
                self._add(found)

    def around(self, module: nn.Module) -> nn.Module | None:
        """The DistributedDataParallel that a module is in; None if it is in none."""
        reference = self._inside.get(id(module))
        return None if reference is None else reference()

    def _add(self, wrapper: DistributedDataParallel) -> None:
        reference = weakref.ref(wrapper)
        for inner in wrapper.module.modules():
            self._inside[id(inner)] = reference

    def _on_made(
        self,
        original: Callable[..., Any],
        wrapper: DistributedDataParallel,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        self._add(wrapper)
        return original(wrapper, *args, **kwargs)

    def _on_hook(
        self,
        original: Callable[..., Any],
        wrapper: DistributedDataParallel,
        state: Any,
        hook: Callable[..., Any],
    ) -> Any:
        name = getattr(hook, "__name__", type(hook).__name__)
        module = getattr(hook, "__module__", "")
        if not module.startswith(_HOOKS):
            self._watching.own_hook = name
        elif name not in _EXACT_HOOKS:
            self._watching.record.compression = name
            if "bf16" in name:
                self._watching.coarsen(torch.bfloat16)
            elif "fp16" in name:
                self._watching.coarsen(torch.float16)
        return original(wrapper, state, hook)
