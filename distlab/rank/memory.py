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
        index: the index of the tensor in the list that was given.
        tensor: the tensor.
        start: the address of the first byte.
        end: the address after the last byte.
    """

    index: int
    tensor: torch.Tensor
    start: int
    end: int

    @property
    def is_dense(self) -> bool:
        """Whether the tensor has every byte of it."""
        num_bytes = self.tensor.numel() * self.tensor.element_size()
        return num_bytes == self.end - self.start


def indices_that_share(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The indices of the tensors that have a byte in common with another one of the list."""
    found: list[int] = []
    extents = sorted(_extents(tensors), key=lambda extent: extent.start)
    for cluster in _clusters(extents):
        if len(cluster) == 1:
            continue
        if all(extent.is_dense for extent in cluster):
            found += [extent.index for extent in cluster]
        else:  # columns of a matrix lie between each other, and share nothing
            found += _indices_written_twice(cluster)
    return sorted(found)


def _extents(tensors: Sequence[torch.Tensor]) -> Iterator[Extent]:
    """Those of the tensors that have memory, and of which each element has its own."""
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor) or not _has_memory(tensor):
            continue
        if _repeats_itself(tensor):  # torch refuses to write to it
            continue
        start = tensor.data_ptr()
        num_elements = _last_element(tensor) + 1
        end = start + num_elements * tensor.element_size()
        yield Extent(index, tensor, start, end)


def _last_element(tensor: torch.Tensor) -> int:
    """How many elements after the first one the last one lies in memory."""
    distance = 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        distance += (size - 1) * stride
    return distance


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements have addresses."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return False
    return tensor.numel() > 0


def _repeats_itself(tensor: torch.Tensor) -> bool:
    """Whether elements of the tensor share memory with each other, as far as its strides show."""
    dimensions = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in dimensions)


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


def _indices_written_twice(extents: Sequence[Extent]) -> list[int]:
    """The indices of the tensors of which another one also has a byte: counted byte by byte."""
    first = min(extent.start for extent in extents)
    last = max(extent.end for extent in extents)
    counts = torch.zeros(last - first, dtype=torch.int16)
    views = {extent.index: _bytes_of(extent, counts, first) for extent in extents}
    for view in views.values():
        view += 1
    return [index for index, view in views.items() if view.max() > 1]


def _bytes_of(extent: Extent, counts: torch.Tensor, first: int) -> torch.Tensor:
    """The counts of the bytes that a tensor has."""
    size = extent.tensor.element_size()
    strides = [stride * size for stride in extent.tensor.stride()]
    return counts.as_strided(
        size=(*extent.tensor.shape, size),
        stride=(*strides, 1),
        storage_offset=extent.start - first,
    )
