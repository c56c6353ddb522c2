"""What was noted in a part of a program: a pass of a pipeline's stage for one micro-batch.

Called by repeats.py and repeats_moved.py, in the process of a rank that is recorded. Plain data,
and pure functions of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from distlab_predict import compiled, memory, streams
from distlab_predict.dataflow import Access, Added, Operation
from distlab_predict.peaks import Change
from distlab_predict.torch_alike import Results, leaves_of


@dataclass
class Place:
    """Where a part of a program is.

    Attributes:
        part: where it begins in the log.
        storages, changes: how many there were in the journal.
        state: of what is compiled; None if nothing is.
        inputs: what the part is given.
        earlier: parts of the same micro-batch.
        num_storages, num_operations: that it has made; 0 until it ends.
        visible: numbers of storages that the program has got of it.
    """

    part: streams.Part
    storages: int
    changes: int
    state: compiled.State | None
    inputs: Results
    earlier: tuple[Place, ...]
    num_storages: int = 0
    num_operations: int = 0
    visible: frozenset[int] = frozenset()

    def seen(self) -> set[int]:
        """Numbers of storages that the program has, and that this part may let go."""
        found: set[int] = set()
        for place in self.earlier:
            found |= place.visible
        for place in (self, *self.earlier):
            found |= {leaf.number for leaf in leaves_of(place.inputs) if leaf.number is not None}
        return found


class Call(NamedTuple):
    """A call of `Dataflow.add`, or of its `repeat`.

    Attributes:
        node, role, unit, flags: of the operation.
        reads, writes: of the first.
        repeated: the index of the other operation, for the second.
        storages: likewise.
    """

    node: int
    role: str
    unit: int
    flags: tuple[bool, bool, bool, int, bool]
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    repeated: int | None = None
    storages: tuple[int, ...] = ()


@dataclass
class Noted:
    """What was noted in a part of a program.

    Attributes:
        log: nodes, waits, and what streams have done.
        journal: storages.
        calls: of the operators that may be compiled.
        sizes: of new storages, in bytes, by their numbers.
        state: at the end, of what is compiled.
        results: what the program gets.
    """

    log: streams.Stretch
    journal: memory.Noted
    calls: list[Call]
    sizes: dict[int, int]
    state: compiled.State | None
    results: Results


def calls_of(made: Iterable[Any], place: Place, operations: list[Operation]) -> list[Call]:
    """The calls of a dataflow in a part.

    Args:
        made: as the dataflow has kept them.
        place: of the part.
        operations: all of the program.
    """
    firsts = [one.state.operations for one in (place, *place.earlier) if one.state is not None]
    indices = {id(operations[index]): index for index in range(min(firsts), len(operations))}
    calls = []
    for one in made:
        own = one.operation
        flags = (own.is_compiled, own.is_backward, own.is_again, own.size, own.is_by_rows)
        call = Call(own.node, own.role, own.unit, flags)
        if isinstance(one, Added):
            call = call._replace(reads=one.reads, writes=one.writes)
        else:
            index = indices.get(id(one.repeated), -1)
            call = call._replace(repeated=index, storages=one.storages)
        calls.append(call)
    return calls


def changes_older(changes: Iterable[Change], place: Place) -> bool:
    """Whether a storage gets or loses memory that no part of the same micro-batch has made.

    FSDP does so when it gathers parameters for each micro-batch.
    """
    own = place.seen()
    for change in changes:
        if change.number >= place.storages or change.number in own:
            continue
        if not any(0 <= change.number - one.storages < one.num_storages for one in place.earlier):
            return True
    return False


def left_by(passes: Sequence[tuple[Place, Noted]]) -> set[tuple[int, int]]:
    """Storages that are there after these parts, and that the program has got of none of them.

    Args:
        passes: of the same micro-batch or of several, each in its place.
    """
    living: set[tuple[int, int]] = set()  # numbers of parts, and of storages in them
    for own, (place, noted) in enumerate(passes):
        for change in noted.journal.changes:
            if 0 <= change.number - place.storages < place.num_storages:
                living ^= {(own, change.number - place.storages)}
            for other, before in enumerate(place.earlier):
                index = change.number - before.storages
                if 0 <= index < before.num_storages:
                    living ^= {(other, index)}
    for own, (place, _) in enumerate(passes):
        living -= {(own, number - place.storages) for number in place.visible}
    return living
