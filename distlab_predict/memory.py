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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
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
from distlab_predict.torch_fake import in_memory

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


class Noted(NamedTuple):
    """What was noted in a part of a program.

    Attributes:
        changes: in their order.
        kinds, lines: of the storages that were made in it.
    """

    changes: list[Change]
    kinds: list[str]
    lines: list[str]


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

    # --- what happens ---

    def add(self, tensor: Tensor, line: str | None = None) -> None:
        """Note a tensor that an operator has made, or returned again.

        Args:
            line: of the program; None to look for it.
        """
        storage = tensor.untyped_storage()
        key = key_of(storage)
        if key not in self._living:
            self._take(key, len(self._kinds), storage.nbytes())
            self._kinds.append(self.kind)
            self._lines.append(self._log.line() if line is None else line)
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

    def name(
        self, kind: str, tensors: Iterable[Tensor], stay: Collection[str] = (PARAMETERS,)
    ) -> None:
        """Say what the storages of these tensors are.

        Args:
            kind: what they are.
            tensors: whose storages.
            stay: storages of these kinds stay what they are.
        """
        for tensor in chain.from_iterable(map(in_memory, tensors)):
            living = self._living.get(key_of(tensor.untyped_storage()))
            if living is not None and self._kinds[living.number] not in stay:
                self._kinds[living.number] = kind

    def begin(self) -> None:
        """Forget what was freed until now: only what is still there counts for the peak."""
        self._changes.clear()
        for number, stream, size in self._living.values():
            self._changes.append(Change(number, stream, size, len(self._log.nodes)))

    # --- parts of a program that are like others ---

    def counts(self) -> tuple[int, int]:
        """How many storages and changes there are."""
        return len(self._kinds), len(self._changes)

    def noted_since(self, storages: int, changes: int) -> Noted:
        """What was noted since there were so many storages and changes."""
        return Noted(self._changes[changes:], self._kinds[storages:], self._lines[storages:])

    def repeat(
        self,
        noted: Noted,
        visible: Mapping[int, torch.UntypedStorage],
        held: dict[int, list[Tensor]],
        go_to: Callable[[int], None],
    ) -> None:
        """Have storages made and freed as in a part before.

        Args:
            noted: with the numbers of this part.
            visible: storages that the program gets, by their numbers.
            held: tensors that nobody else may need, by the numbers of their storages: they are
                let go where their storages were freed.
            go_to: called before a change, if there are more nodes by then, with their number.
        """
        first = len(self._kinds)
        here = len(self._log.nodes)
        self._kinds += noted.kinds
        self._lines += noted.lines
        for change in noted.changes:
            if change.node > here:
                here = change.node
                go_to(here)
            number = change.number
            if number in visible and change.size >= 0:
                key = key_of(visible[number])
                self._living[key] = Living(number, change.stream, change.size)
                self._changes.append(change)
                weakref.finalize(visible[number], self._free, key)
                continue
            key = -1 - number  # of a storage that nobody sees
            if key in self._living:
                self._free(key)
            elif number < first:
                held.pop(number, None)
            else:
                self._living[key] = Living(number, change.stream, change.size)
                self._changes.append(change)

    # --- a compiled program ---

    def number_of(self, tensor: Tensor) -> int | None:
        """The number of a tensor's storage; None if it is not known."""
        living = self._living.get(key_of(tensor.untyped_storage()))
        if living is None:
            return None
        return living.number

    def replace(
        self,
        lives: Mapping[int, tuple[int, int] | None],
        uses: Mapping[int, int],
        places: Sequence[int],
    ) -> None:
        """Have the nodes of a compiled program in place of those that were noted.

        Args:
            lives: by the number of a storage, the first and the last of the new nodes that use it;
                None for one that has no memory. All others live as they did, or longer.
            uses: by the number of another storage, the last of the new nodes that uses it, as a
                compiled program may keep an argument for its gradient that an eager one lets go.
            places: by a number of old nodes, the number of new ones that are called by then.
        """
        last = {change.number: index for index, change in enumerate(self._changes)}
        changes = []  # with the node, and what comes first: to give back, to take for the next node
        for index, change in enumerate(self._changes):
            first_use, last_use = lives.get(change.number) or (None, None)
            node = places[change.node]
            if change.number not in lives:
                if change.size < 0 and index == last[change.number]:
                    node = max(node, uses.get(change.number, -1) + 1)
                changes.append((node, 1, Change(change.number, change.stream, change.size, node)))
            elif first_use is not None and last_use is not None and change.size > 0:
                end = last_use + 1
                number, stream, size, _ = change
                changes.append((first_use, 2, Change(number, stream, size, first_use)))
                changes.append((end, 0, Change(number, stream, -size, end)))
        changes.sort(key=itemgetter(0, 1))
        self._changes = [change for *_, change in changes]

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
        reserved, needed = most_reserved(self._changes, is_expandable)
        levels = levels_since(begin, self._replay, self._kinds)
        return Held(tuple(self._made()), reserved, needed, tuple(levels))

    def _replay(self) -> Iterator[Change]:
        return iter(self._changes)

    def _made(self) -> list[Made]:
        return made_at_peak(self._replay, self._kinds, self._lines)
