"""Whether tensors that a call writes to share memory, as the places of `[tensor] * world_size` do.

Runs on every rank in checked mode, called by checks.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Extent:
    """The memory between the first and the last byte of a tensor.

    Attributes:
        place: the tensor's, in the list that was given.
        tensor: itself.
        start: the address of the first byte.
        end: the address after the last byte.
    """

    place: int
    tensor: torch.Tensor
    start: int
    end: int

    @property
    def is_dense(self) -> bool:
        """Whether the tensor has every byte of it."""
        return self.end - self.start == self.tensor.numel() * self.tensor.element_size()


def places_that_share(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The places of the tensors that have a byte in common with another one of the list."""
    found: list[int] = []
    for extents in _clusters(sorted(_extents(tensors), key=lambda one: one.start)):
        if len(extents) == 1:
            continue
        if all(one.is_dense for one in extents):
            found += [one.place for one in extents]
        else:  # columns of a matrix lie between each other, and share nothing
            found += _places_written_twice(extents)
    return sorted(found)


def _extents(tensors: Sequence[torch.Tensor]) -> Iterator[Extent]:
    """Those of the tensors that have memory, and of which each element has its own."""
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor) or not _has_memory(tensor):
            continue
        if _repeats_itself(tensor):  # torch refuses to write to it
            continue
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps)
        start = tensor.data_ptr()
        yield Extent(place, tensor, start, start + (last + 1) * tensor.element_size())


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements have addresses."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return False
    return tensor.numel() > 0


def _repeats_itself(tensor: torch.Tensor) -> bool:
    """Whether elements of the tensor share memory with each other, as far as its strides show."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in steps)


def _clusters(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    """Extents that overlap, directly or by others between them. They are given by their start."""
    cluster: list[Extent] = []
    end = 0
    for extent in extents:
        if cluster and extent.start >= end:
            yield cluster
            cluster = []
        cluster.append(extent)
        end = max(end, extent.end)
    if cluster:
        yield cluster


def _places_written_twice(extents: Sequence[Extent]) -> list[int]:
    """The places of the tensors of which another one also has a byte: counted byte by byte."""
    first = min(one.start for one in extents)
    counts = torch.zeros(max(one.end for one in extents) - first, dtype=torch.int16)
    views = {one.place: _bytes_of(one, counts, first) for one in extents}
    for view in views.values():
        view += 1
    return [place for place, view in views.items() if view.max() > 1]


def _bytes_of(extent: Extent, counts: torch.Tensor, first: int) -> torch.Tensor:
    """The counts of the bytes that a tensor has."""
    size = extent.tensor.element_size()
    strides = [stride * size for stride in extent.tensor.stride()]
    return counts.as_strided((*extent.tensor.shape, size), (*strides, 1), extent.start - first)
