"""Which samples of a data set a rank works on.

Called by the notebooks and on the ranks; the same code runs under `torchrun`. Notebook 04 builds the partitioner.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Subset, random_split

from distlab.text import refuse, whole_number


class Partition(Subset):
    """A part of a data set: torch's Subset, the samples `indices` in that order, which a DataLoader takes."""

    def __repr__(self) -> str:
        return f"Partition of {len(self)} of {len(self.dataset)} samples"


class DataPartitioner:
    """A data set, shuffled and cut into partitions; every sample is in exactly one of them.

    The same seed gives the same partitions on every rank, so that each rank takes its own and no rank has to send any.
    Sizes and samples are those of torch.utils.data.random_split with a generator of the same seed.

    Runs on: anywhere; no rank waits for another.

    Args:
        data: anything with a length and samples by number.
        sizes: fractions that add up to 1, or numbers of samples that add up to len(data). What fractions leave over is
            given to the first partitions, one sample each.
        seed: of the shuffle.

    Raises:
        ArgumentError: the sizes do not add up, or would leave a partition without a sample.

    Source: PyTorch tutorials, Writing Distributed Applications with PyTorch (whose version drops what is left over).
    """

    def __init__(self, data: Any, sizes: Sequence[float], seed: int = 1234):
        self.data = data
        self.sizes = _counts(len(data), sizes)
        self._parts = random_split(data, self.sizes, torch.Generator().manual_seed(seed))

    def use(self, partition: int) -> Partition:
        """The partition with that number: a rank takes its own.

        Raises:
            ArgumentError: there is no such partition.
        """
        whole_number("partition", partition, 0, len(self.sizes) - 1, "Call use(rank).")
        return Partition(self.data, self._parts[partition].indices)

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        return f"DataPartitioner: {len(self.data)} samples in partitions of {', '.join(map(str, self.sizes))}"


def batch_per_rank(batch: int, world_size: int) -> int:
    """How many samples of a global batch each rank takes: batch // world_size, so that more ranks change little else.

    Runs on: anywhere.

    Raises:
        ArgumentError: the batch does not give each rank one sample.
    """
    whole_number("batch", batch, world_size, advice=f"Give for example batch={32 * world_size}, or use fewer ranks.")
    return batch // world_size


def _counts(total: int, sizes: Sequence[float]) -> list[int]:
    """The number of samples of each partition; of fractions, what is left over goes to the first ones."""
    counts = list(sizes)
    if all(isinstance(size, float) for size in counts) and math.isclose(math.fsum(counts), 1):
        counts = [math.floor(total * fraction) for fraction in counts]
        left_over = total - sum(counts)
        counts = [count + (place < left_over) for place, count in enumerate(counts)]
    if sum(counts) != total:
        rule = f"fractions that add up to 1, or numbers that add up to the {total} samples"
        refuse("sizes", rule, sizes, "Give for example [1 / world_size] * world_size.")
    if min(counts) < 1:
        why = f"{total} samples do not go into these {len(counts)} partitions: use fewer ranks, or more data."
        refuse("sizes", "at least one sample for each partition", sizes, why)
    return counts
