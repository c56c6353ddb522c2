"""How much memory of which kind a program has at its peak. Runs in the recorder's process.

Called by recorder.py: every storage that an operator makes, resizes or frees goes into a journal.
What a storage was is often known later: the optimizer sees which ones are gradients.

What counts is what torch's caching allocator keeps for itself on a GPU
(torch.cuda.max_memory_reserved). It has a pool for each stream, and memory that was freed on one
stream is not given to another. So each pool is as large as its own peak: FSDP2's gradients, made on
the stream of their reduce-scatter, never lie where activations were.
"""

import itertools
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from distlab.compat.torch import key_of
from distlab_predict.nodes import Stream
from distlab_predict.streams import NodeLog
from distlab_predict.torch_fake import part_of

ACTIVATIONS = "activations"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
PARAMETERS = "parameters"
UNSHARDED = "unsharded parameters"


class Living(NamedTuple):
    """A storage that has memory.

    Attributes:
        number: of the storage in the journal.
        pool: the stream that it was made on.
        size: in bytes.
    """

    number: int
    pool: Stream
    size: int


class Change(NamedTuple):
    """A pool grows by so many bytes for a storage, or shrinks, where `size` is negative."""

    number: int
    size: int


class Journal:
    """What became of each storage, in order.

    Attributes:
        kind: what is made now.
    """

    def __init__(self, log: NodeLog) -> None:
        self.kind = ACTIVATIONS
        self._log = log
        self._kinds: list[str] = []  # of all storages, by their numbers
        self._living: dict[int, Living] = {}  # by the key of the storage
        self._changes: defaultdict[Stream, list[Change]] = defaultdict(list)  # by pool

    def add(self, tensor: Tensor) -> None:
        """Note a tensor that an operator has made, or returned again."""
        storage = tensor.untyped_storage()
        key = key_of(storage)
        if key not in self._living:
            self._take(key, len(self._kinds), storage.nbytes())
            self._kinds.append(self.kind)
            weakref.finalize(storage, self._free, key)

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Note that a storage has another size now."""
        key = key_of(storage)
        if key in self._living:
            number = self._free(key)
            self._take(key, number, storage.nbytes())

    def _take(self, key: int, number: int, size: int) -> None:
        """Give a storage memory, in the pool of the current stream."""
        pool = self._log.current()
        self._living[key] = Living(number, pool, size)
        self._changes[pool].append(Change(number, size))

    def _free(self, key: int) -> int:
        """Take the memory of a storage back, and return its number."""
        number, pool, size = self._living.pop(key)
        self._changes[pool].append(Change(number, -size))
        return number

    def name(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Say what the storages of these tensors are; those of parameters stay parameters."""
        for tensor in tensors:
            storage = part_of(tensor).untyped_storage()
            living = self._living.get(key_of(storage))
            if living is not None and self._kinds[living.number] != PARAMETERS:
                self._kinds[living.number] = kind

    def begin(self) -> None:
        """Forget what was freed until now: only what is still there counts for the peak."""
        self._changes.clear()
        for number, pool, size in self._living.values():
            self._changes[pool].append(Change(number, size))

    def peak(self) -> dict[str, int]:
        """Bytes of all pools by kind, of each pool at the time when it was largest."""
        sizes: Counter[str] = Counter()
        for changes in self._changes.values():
            for number, size in changes[: _changes_to_peak(changes)]:
                sizes[self._kinds[number]] += size
        return {kind: size for kind, size in sizes.items() if size}


def _changes_to_peak(changes: list[Change]) -> int:
    """How many changes of a pool there are until it is largest for the first time."""
    totals = list(itertools.accumulate(size for _, size in changes))
    return totals.index(max(totals)) + 1
