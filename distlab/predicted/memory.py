"""How much memory of which kind a program has at its peak. Runs in the recorder's process.

Every storage that an operator makes, resizes or frees goes into a journal. What a storage was is often known later:
the optimizer sees which ones are gradients.
"""

import weakref
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from distlab.compat.torch_fake import key_of, part_of

ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS = "activations", "gradients", "optimizer", "parameters"
UNSHARDED = "unsharded parameters"


class Journal:
    """What became of each storage, in order."""

    def __init__(self) -> None:
        self.kind = ACTIVATIONS  # of what is made now
        self._numbers: dict[int, int] = {}  # of living storages, by what tells them apart
        self._kinds: list[str] = []
        self._changes: list[tuple[int, int]] = []  # (number of the storage, its size from now on)
        self._first = 0

    def add(self, tensor: Tensor) -> None:
        """An operator has made this tensor, or returned it again."""
        storage = tensor.untyped_storage()
        key = key_of(storage)
        if key not in self._numbers:
            self._numbers[key] = len(self._kinds)
            self._kinds.append(self.kind)
            self._changes.append((len(self._kinds) - 1, storage.nbytes()))
            weakref.finalize(storage, self._free, key)

    def resize(self, storage: torch.UntypedStorage) -> None:
        if (number := self._numbers.get(key_of(storage))) is not None:
            self._changes.append((number, storage.nbytes()))

    def _free(self, key: int) -> None:
        self._changes.append((self._numbers.pop(key), 0))

    def name(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Say what the storages of these tensors are."""
        for tensor in tensors:
            number = self._numbers.get(key_of(part_of(tensor).untyped_storage()))
            if number is not None and self._kinds[number] != PARAMETERS:
                self._kinds[number] = kind

    def begin(self) -> None:
        """What is made from now on counts for the peak."""
        self._first = self._first or len(self._changes)

    def peak(self) -> dict[str, int]:
        """Bytes by kind when they were most."""
        sizes, total, highest, when = Counter(), 0, -1, 0
        for place, (number, size) in enumerate(self._changes):
            total += size - sizes[number]
            sizes[number] = size
            if place >= self._first and total > highest:
                highest, when = total, place
        sizes = dict(self._changes[: when + 1])
        kinds = Counter()
        for number, size in sizes.items():
            kinds[self._kinds[number]] += size
        return dict(kinds)
