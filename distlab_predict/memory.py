"""How much memory of which kind a program has at its peak. Runs in the recorder's process.

Every storage that an operator makes, resizes or frees goes into a journal. What a storage was is
often known later: the optimizer sees which ones are gradients.

What counts is what torch's caching allocator keeps for itself on a GPU
(torch.cuda.max_memory_reserved): it has a pool for each stream, and memory that was freed on one
stream is not given to another. So each pool is as large as its own peak: FSDP2's gradients, made on
the stream of their reduce-scatter, never lie where activations were.
"""

import itertools
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from distlab.compat.torch import key_of
from distlab_predict.nodes import Stream
from distlab_predict.streams import Timeline
from distlab_predict.torch_fake import part_of

ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS = (
    "activations",
    "gradients",
    "optimizer",
    "parameters",
)
UNSHARDED = "unsharded parameters"


class Journal:
    """What became of each storage, in order."""

    def __init__(self, timeline: Timeline) -> None:
        self.kind = ACTIVATIONS  # of what is made now
        self._timeline = timeline
        self._kinds: list[str] = []  # of all storages, by their numbers
        # number, pool and bytes, by what tells storages apart
        self._living: dict[int, tuple[int, Stream, int]] = {}
        # (number, bytes more or less)
        self._changes: defaultdict[Stream, list[tuple[int, int]]] = defaultdict(list)

    def add(self, tensor: Tensor) -> None:
        """An operator has made this tensor, or returned it again."""
        storage = tensor.untyped_storage()
        key = key_of(storage)
        if key not in self._living:
            self._take(key, len(self._kinds), storage.nbytes())
            self._kinds.append(self.kind)
            weakref.finalize(storage, self._free, key)

    def resize(self, storage: torch.UntypedStorage) -> None:
        if (key := key_of(storage)) in self._living:
            self._take(key, self._free(key), storage.nbytes())

    def _take(self, key: int, number: int, size: int) -> None:
        """A storage gets memory, in the pool of the current stream."""
        pool = self._timeline.current()
        self._living[key] = number, pool, size
        self._changes[pool].append((number, size))

    def _free(self, key: int) -> int:
        """A storage gives its memory back; returns its number."""
        number, pool, size = self._living.pop(key)
        self._changes[pool].append((number, -size))
        return number

    def name(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Say what the storages of these tensors are."""
        for tensor in tensors:
            living = self._living.get(key_of(part_of(tensor).untyped_storage()))
            if living and self._kinds[living[0]] != PARAMETERS:
                self._kinds[living[0]] = kind

    def begin(self) -> None:
        """Of what was made until now, only what is still there counts for the peak."""
        self._changes.clear()
        for number, pool, size in self._living.values():
            self._changes[pool].append((number, size))

    def peak(self) -> dict[str, int]:
        """Bytes of all pools by kind, of each when they were most."""
        kinds = Counter()
        for changes in self._changes.values():
            totals = list(itertools.accumulate(size for _, size in changes))
            for number, size in changes[: totals.index(max(totals)) + 1]:
                kinds[self._kinds[number]] += size
        return {kind: size for kind, size in kinds.items() if size}
