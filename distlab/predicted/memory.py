"""How much memory of which kind a program has at its peak. Runs in the recorder's process.

Every storage that an operator makes, resizes or frees goes into a journal. What a storage was is often known later:
the optimizer sees which ones are gradients.

What counts is what torch's caching allocator keeps for itself on a GPU (torch.cuda.max_memory_reserved): it has a pool
for each stream, and memory that was freed on one stream is not given to another. So each pool is as large as its own
peak: FSDP2's gradients, made on the stream of their reduce-scatter, never lie where activations were.
"""

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from distlab.compat.torch import key_of
from distlab.compat.torch_fake import part_of
from distlab.predicted.nodes import Stream
from distlab.predicted.streams import Timeline

ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS = "activations", "gradients", "optimizer", "parameters"
UNSHARDED = "unsharded parameters"


class Journal:
    """What became of each storage, in order."""

    def __init__(self, timeline: Timeline) -> None:
        self.kind = ACTIVATIONS  # of what is made now
        self._timeline = timeline
        self._numbers: dict[int, int] = {}  # of living storages, by what tells them apart
        self._kinds: list[str] = []
        self._pools: dict[int, Stream] = {}  # where a living storage has its memory, by its number
        self._changes: defaultdict[Stream, list[tuple[int, int]]] = defaultdict(list)  # (number, size from now on)
        self._first: dict[Stream, int] | None = None  # by pool: the change from which on they count

    def add(self, tensor: Tensor) -> None:
        """An operator has made this tensor, or returned it again."""
        storage = tensor.untyped_storage()
        key = key_of(storage)
        if key not in self._numbers:
            self._numbers[key] = len(self._kinds)
            self._kinds.append(self.kind)
            self._change(len(self._kinds) - 1, storage.nbytes())
            weakref.finalize(storage, self._free, key)

    def resize(self, storage: torch.UntypedStorage) -> None:
        if (number := self._numbers.get(key_of(storage))) is not None:
            self._change(number, 0)
            self._change(number, storage.nbytes())

    def _free(self, key: int) -> None:
        self._change(self._numbers.pop(key), 0)

    def _change(self, number: int, size: int) -> None:
        """A storage gets memory on the current stream, or gives back what it has."""
        if size or number in self._pools:
            pool = self._pools.setdefault(number, self._timeline.current())
            self._changes[pool].append((number, size))
        if not size:
            self._pools.pop(number, None)

    def name(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Say what the storages of these tensors are."""
        for tensor in tensors:
            number = self._numbers.get(key_of(part_of(tensor).untyped_storage()))
            if number is not None and self._kinds[number] != PARAMETERS:
                self._kinds[number] = kind

    def begin(self) -> None:
        """What is made from now on counts for the peak."""
        if self._first is None:
            self._first = {pool: len(changes) for pool, changes in self._changes.items()}

    def peak(self) -> dict[str, int]:
        """Bytes of all pools by kind, of each when they were most."""
        kinds = Counter()
        for pool, changes in self._changes.items():
            for number, size in largest(changes, (self._first or {}).get(pool, 0)).items():
                kinds[self._kinds[number]] += size
        return {kind: size for kind, size in kinds.items() if size}


def largest(changes: list[tuple[int, int]], first: int) -> dict[int, int]:
    """Sizes by number when their sum was largest, at the first of the changes that count, or later."""
    sizes, total, highest, when = Counter(), 0, -1, 0
    for place, (number, size) in enumerate(changes):
        total += size - sizes[number]
        sizes[number] = size
        if place >= first - 1 and total > highest:
            highest, when = total, place
    return dict(changes[: when + 1])
