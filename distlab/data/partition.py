"""Which samples a rank works on: a data set cut into partitions that use every sample exactly once.

Called on the ranks, and anywhere else; needs torch alone. Notebook 04 builds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from distlab.errors import refuse

SEED = 1234


class Partition:
    """A part of a data set: the samples `indices`, in that order. A torch DataLoader takes it like any data set.

    Args:
        data: anything with a length and samples by number.
        indices: numbers of samples of `data`.
    """

    def __init__(self, data: Any, indices: Sequence[int]):
        self.data = data
        self.indices = list(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> Any:
        return self.data[self.indices[place]]

    def __getitems__(self, places: Sequence[int]) -> list[Any]:
        """A batch at once, where the data set can give one: a DataLoader asks for it."""
        indices = [self.indices[place] for place in places]
        at_once = getattr(self.data, "__getitems__", None)
        return at_once(indices) if at_once else [self.data[index] for index in indices]

    def __repr__(self) -> str:
        return f"Partition of {len(self)} of {len(self.data)} samples"


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

    def __init__(self, data: Any, sizes: Sequence[float], seed: int = SEED):
        if not hasattr(data, "__len__"):
            refuse("data", "a data set with a length", data, "Call DataPartitioner(range(100), [0.5, 0.5]).", True)
        self.data = data
        self.sizes = _counts(len(data), sizes)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        self._indices = [part.tolist() for part in order.split(self.sizes)]

    def use(self, partition: int) -> Partition:
        """The partition with that number: a rank takes its own.

        Raises:
            ArgumentError: there is no such partition.
        """
        last = len(self.sizes) - 1
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition <= last:
            refuse("partition", f"a whole number from 0 to {last}", partition, "Call use(rank).")
        return Partition(self.data, self._indices[partition])

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
    whole = isinstance(batch, int) and not isinstance(batch, bool)
    if not whole or batch < world_size:
        rule = f"a whole number of samples, at least one for each of the {world_size} ranks"
        refuse("batch", rule, batch, f"Give for example batch={32 * world_size}, or use fewer ranks.", not whole)
    return batch // world_size


def _counts(total: int, sizes: Any) -> list[int]:
    """The number of samples of each partition."""
    advice = "Give for example [0.5, 0.5], or [1 / world_size] * world_size."
    listed = list(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, (str, bytes)) else []
    kinds = {type(size) for size in listed}
    if kinds not in ({int}, {float}):
        refuse("sizes", "a list of fractions, or a list of numbers of samples", sizes, advice, wrong_type=True)
    if kinds == {int}:
        if sum(listed) != total:
            refuse("sizes", f"numbers that add up to the {total} samples", sizes, f"These add up to {sum(listed)}.")
        counts = listed
    else:
        if not math.isclose(math.fsum(listed), 1):
            refuse("sizes", "fractions that add up to 1", sizes, f"These add up to {math.fsum(listed):.6g}. {advice}")
        counts = _round(total, listed)
    if min(counts) < 1:
        why = f"{total} samples do not go into these {len(listed)} partitions: use fewer ranks, or more data."
        refuse("sizes", "at least one sample for each partition", sizes, why)
    return counts


def _round(total: int, fractions: list[float]) -> list[int]:
    """Whole numbers in these proportions that add up to `total`, by the rule of torch's random_split."""
    counts = [math.floor(total * fraction) for fraction in fractions]
    for place in range(total - sum(counts)):
        counts[place % len(counts)] += 1
    return counts
