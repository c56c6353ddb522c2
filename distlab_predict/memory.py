"""How much memory of which kind a program has at its peak. Runs in the recorder's process.

Called by recorder.py: every storage that an operator makes, resizes or frees goes into a journal.
What a storage was is often known later: the optimizer sees which ones are gradients.

What counts is what torch's caching allocator keeps for itself on a GPU
(torch.cuda.max_memory_reserved). It has a pool for each stream, and memory that was freed on one
stream is not given to another. So each pool is as large as its own peak: FSDP2's gradients, made on
the stream of their reduce-scatter, never lie where activations were. What a pool cannot use between
its blocks is found by allocator.py, which puts each storage in its place.
"""

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from distlab.compat.torch import key_of
from distlab_predict.held import Held, Made
from distlab_predict.nodes import Stream
from distlab_predict.peaks import (
    Change,
    levels_since,
    made_at_peak,
    most_reserved,
    sizes_by_kind,
)
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
        stream: that it was made on.
        size: in bytes.
    """

    number: int
    stream: Stream
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
        self._lines: list[str] = []  # that made them, likewise
        self._living: dict[int, Living] = {}  # by the key of the storage
        self._changes: list[Change] = []
        # storages without memory from a time on, and from when they have it again
        self._leaving: defaultdict[int, list[int]] = defaultdict(list)
        self._returning: defaultdict[int, list[int]] = defaultdict(list)

    # --- what happens ---

    def add(self, tensor: Tensor) -> None:
        """Note a tensor that an operator has made, or returned again."""
        storage = tensor.untyped_storage()
        key = key_of(storage)
        if key not in self._living:
            self._take(key, len(self._kinds), storage.nbytes())
            self._kinds.append(self.kind)
            self._lines.append(self._log.line())
            weakref.finalize(storage, self._free, key)

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Note that a storage has another size now."""
        key = key_of(storage)
        if key in self._living:
            number = self._free(key)
            self._take(key, number, storage.nbytes())

    def _take(self, key: int, number: int, size: int) -> None:
        """Give a storage memory, in the pool of the current stream."""
        stream = self._log.current()
        self._living[key] = Living(number, stream, size)
        self._changes.append(Change(number, stream, size, len(self._log.nodes)))

    def _free(self, key: int) -> int:
        """Take the memory of a storage back, and return its number."""
        number, stream, size = self._living.pop(key)
        self._changes.append(Change(number, stream, -size, len(self._log.nodes)))
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
        for number, stream, size in self._living.values():
            self._changes.append(Change(number, stream, size, len(self._log.nodes)))

    # --- what a compiled program does without ---

    def now(self) -> int:
        """The present, as `absent` takes times. Times before `begin` do not count."""
        return len(self._changes)

    def number_of(self, tensor: Tensor) -> int | None:
        """The number of a tensor's storage, as `absent` takes it; None if it is not known."""
        living = self._living.get(key_of(tensor.untyped_storage()))
        if living is None:
            return None
        return living.number

    def absent(self, number: int, since: int = 0, until: int | None = None) -> None:
        """Say that a storage has no memory for a time, as one inside of a fused kernel.

        Several such times of a storage must not overlap.

        Args:
            number: of the storage.
            since: a time, see `now`.
            until: another one, from which it has memory again, if it lives; None for never.
        """
        self._leaving[since].append(number)
        if until is not None:
            self._returning[until].append(number)

    def _replayed(self) -> Iterator[Change]:
        """All changes, without those of storages while they are absent."""
        living: dict[int, Change] = {}  # last changes of the storages that live, by their numbers
        absent: set[int] = set()
        for time, change in enumerate(self._changes):
            for number in self._leaving.get(time, ()):
                absent.add(number)
                if number in living:
                    yield living[number]._replace(size=-living[number].size, node=change.node)
            for number in self._returning.get(time, ()):
                absent.discard(number)
                if number in living:
                    yield living[number]._replace(node=change.node)
            if change.size > 0:
                living[change.number] = change
            else:
                living.pop(change.number, None)
            if change.number not in absent:
                yield change

    # --- what it means ---

    def peak(self) -> dict[str, int]:
        """Bytes of all pools by kind, of each pool at the time when it was largest."""
        return sizes_by_kind(self._made())

    def held(self, is_expandable: bool, begin: int) -> Held:
        """What a GPU's memory holds.

        Args:
            is_expandable: whether the segments of its allocator are.
            begin: the index of the first node of the last step.
        """
        reserved, needed = most_reserved(self._replayed(), is_expandable)
        levels = levels_since(begin, self._replayed, self._kinds)
        return Held(tuple(self._made()), reserved, needed, tuple(levels))

    def _made(self) -> list[Made]:
        return made_at_peak(self._replayed, self._kinds, self._lines)
