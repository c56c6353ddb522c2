"""What is looked at of a module that is called: names, first values, types, statistics.

Runs on every rank; called by watch.py and forwards.py.
"""

from __future__ import annotations

import torch
from torch import nn

from distlab.comparison.watching.flat_parameters import FlatPart
from distlab.comparison.watching.naming import plain_name
from distlab.comparison.watching.own_gradients import OwnGradients
from distlab.comparison.watching.state import Watching
from distlab.compat import torch_watching as private

# nn.SyncBatchNorm is none of them
_LOCAL_STATISTICS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class CalledModules:
    """Looks at the outermost modules that a program calls."""

    def __init__(self, watching: Watching, own_gradients: OwnGradients) -> None:
        self._watching = watching
        self._own_gradients = own_gradients

    def look_at(self, module: nn.Module) -> None:
        """Look at a module that is about to be called."""
        watching = self._watching
        watching.naming.add_module(module)
        self._look_for_flat_parameters(module)
        sharded, were_spread = private.fully_sharded(module)
        is_parallel = were_spread
        for parameter in module.parameters():
            watching.see_initial(parameter)
            watching.coarsen(parameter.dtype)
            if id(parameter) not in sharded and private.is_spread(parameter):
                is_parallel = True
        if is_parallel:
            watching.record.model_parallel = True
        for dtype in private.fsdp_types(module):
            watching.coarsen(dtype)
        if torch.is_autocast_enabled("cpu"):
            watching.coarsen(torch.get_autocast_dtype("cpu"))
        self._own_gradients.look_into(module)
        if module.training:
            self._look_for_statistics(module)

    def _look_for_flat_parameters(self, module: nn.Module) -> None:
        watching = self._watching
        known = set(watching.flat)
        paths = {unit: path for path, unit in module.named_modules()}
        for unit, name, parameter, shape, place in private.flat_parts(module):
            if id(parameter) in known:
                continue
            first = place.offset_in_shard or 0
            if parameter.numel() == place.numel_in_shard:  # it is this part alone
                first = 0
            part = FlatPart(
                parameter,
                tuple(shape),
                first=first,
                start=place.intra_param_start_idx or 0,
                elements=place.numel_in_shard or 0,
            )
            watching.flat.setdefault(id(parameter), []).append(part)
            watching.naming.add_part(module, part, f"{paths[unit]}.{name}".lstrip("."))

    def _look_for_statistics(self, module: nn.Module) -> None:
        names = self._watching.record.local_statistics
        for name, inner in module.named_modules():
            plain = plain_name(name)
            is_local = isinstance(inner, _LOCAL_STATISTICS) and inner.training
            if is_local and plain not in names:
                names.append(plain)
