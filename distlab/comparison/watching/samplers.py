"""Passes over a DistributedSampler.

Runs on every rank; called by watch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any, cast

from torch.utils.data.distributed import DistributedSampler

from distlab.comparison.records import SeenSampler
from distlab.comparison.watching.seen_lines import learners_line
from distlab.comparison.watching.state import Watching


class Samplers:
    """Looks at every pass over a DistributedSampler."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._samplers: list[DistributedSampler[Any]] = []

    def install(self) -> None:
        """Begin to look."""
        self._watching.patches.replace(DistributedSampler, "__iter__", self._on_pass)

    def _on_pass(
        self, original: Callable[..., Iterator[Any]], sampler: DistributedSampler[Any]
    ) -> Iterator[Any]:
        padded = sampler.total_size - len(cast(Sized, sampler.dataset))
        self._watching.record.samplers.append(
            SeenSampler(
                sampler=self._number(sampler),
                epoch=sampler.epoch,
                shuffles=sampler.shuffle,
                rank=sampler.rank,
                replicas=sampler.num_replicas,
                padded=max(padded, 0),
                line=learners_line(),
            )
        )
        return original(sampler)

    def _number(self, sampler: DistributedSampler[Any]) -> int:
        for number, known in enumerate(self._samplers):
            if known is sampler:
                return number
        self._samplers.append(sampler)
        return len(self._samplers) - 1
