"""What would be noted if a part of a program ran in another place, with other numbers.

Called by repeats.py, in the process of a rank that is recorded. Pure functions of plain data.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from distlab_predict import compiled, streams
from distlab_predict.dataflow import HELD, Access
from distlab_predict.nodes import Node
from distlab_predict.peaks import Change
from distlab_predict.repeats_noted import Call, Noted, Place
from distlab_predict.torch_alike import leaves_of, with_numbers


class _Shift:
    """Numbers of a part, and what they would be in another place."""

    def __init__(self, old: Place, new: Place):
        self._first_node = old.part.node
        self._nodes = new.part.node - old.part.node
        self._marks = new.part.mark - old.part.mark
        self._first_storage = old.storages
        self._storages = new.storages - old.storages
        self._of_others: dict[int, int] = {}
        self._bytes: dict[int, int] = {}  # by how many a storage's part is further on
        self._units = 0
        self._operations: list[tuple[range, int]] = []
        self._statistics = 0
        for own, again in zip((old, *old.earlier), (new, *new.earlier), strict=True):
            for one, other in zip(leaves_of(own.inputs), leaves_of(again.inputs), strict=True):
                if one.number is not None and other.number is not None:
                    self._of_others.setdefault(one.number, other.number)
                    further = (other.offset - one.offset) * one.dtype.itemsize
                    self._bytes.setdefault(one.number, further)
        for before, after in zip(old.earlier, new.earlier, strict=True):
            for index in range(before.num_storages):
                number = before.storages + index
                self._of_others[number] = after.storages + index
                self._bytes.pop(number, None)
        if old.state is None or new.state is None:
            return
        self._units = new.state.unit - old.state.unit
        self._statistics = new.state.statistics - old.state.statistics
        first = old.state.operations
        self._operations.append((range(first, 1 << 60), new.state.operations - first))
        for before, after in zip(old.earlier, new.earlier, strict=True):
            if before.state is not None and after.state is not None:
                begin = before.state.operations
                theirs = range(begin, begin + before.num_operations)
                self._operations.append((theirs, after.state.operations - begin))

    def node(self, index: int) -> int:
        """The index of a node, or a mark."""
        if index < 0:
            return index - self._marks
        if index >= self._first_node:
            return index + self._nodes
        return index

    def storage(self, number: int) -> int:
        """The number of a storage; below 0 for one without a tensor."""
        if number >= self._first_storage:
            return number + self._storages
        if number < 0:
            return number - self._statistics
        return self._of_others.get(number, number)

    def operation(self, index: int) -> int:
        """The index of an operation."""
        for own, shift in self._operations:
            if index in own:
                return index + shift
        return index

    def unit(self, number: int) -> int:
        return number + self._units

    def access(self, access: Access) -> Access:
        """The same part of another storage."""
        number, begin, num_bytes, is_reduced = access
        begin += self._bytes.get(number, 0)
        return Access(self.storage(number), begin, num_bytes, is_reduced)

    def state(self, state: compiled.State | None) -> compiled.State | None:
        if state is None:
            return None
        return state._replace(
            operations=self.operation(state.operations),
            unit=self.unit(state.unit),
            statistics=state.statistics + self._statistics,
        )

    def call(self, call: Call) -> Call:
        node, role, unit, flags, reads, writes, repeated, storages = call
        if node != HELD:
            node += self._nodes
        if repeated is not None:
            repeated = self.operation(repeated)
        return Call(
            node,
            role,
            self.unit(unit),
            flags,
            tuple(map(self.access, reads)),
            tuple(map(self.access, writes)),
            repeated,
            tuple(map(self.storage, storages)),
        )


def is_like(noted: Noted, old: Place, other: Noted, new: Place) -> bool:
    """Whether what was noted in one place is what would be noted there if another part ran again.

    When the storages are freed that the program has got of parts before depends on the program:
    a schedule may hold the last micro-batch's longer, or the first ones'.

    Args:
        noted, old: of that other part.
        other, new: what was noted, and where.
    """
    if len(old.earlier) != len(new.earlier):
        return False
    again = moved(noted, old, new)
    seen = new.seen()
    return _without_frees(again, seen) == _without_frees(other, seen)


def _without_frees(noted: Noted, numbers: Collection[int]) -> Noted:
    changes = [change for change in noted.journal.changes if change.number not in numbers]
    return replace(noted, journal=noted.journal._replace(changes=changes))


def moved(noted: Noted, old: Place, new: Place) -> Noted:
    """What would be noted if a part ran in another place.

    Args:
        noted: in the place where it ran.
        old: that place.
        new: the other one.
    """
    shift = _Shift(old, new)
    first = old.part.node
    further = new.part.node - first
    nodes = []
    for node in noted.log.nodes:
        after = node.after
        if len(after) == 1 and after[0] >= first:  # nearly all, so without a call
            after = (after[0] + further,)
        else:
            after = tuple(map(shift.node, after))
        nodes.append(_with_after(node, after))
    waits = []
    for wait in noted.log.waits:
        ends = tuple(map(shift.node, wait.ends))
        waits.append(wait._replace(before=shift.node(wait.before), ends=ends))
    ends_of = {}
    for stream, own in noted.log.ends.items():
        ends_of[stream] = frozenset(map(shift.node, own))
    more = new.storages - old.storages
    changes = []
    for number, stream, size, index in noted.journal.changes:
        other = number + more if number >= old.storages else shift.storage(number)
        changes.append(Change(other, stream, size, index + further))
    return Noted(
        streams.Stretch(nodes, waits, ends_of, noted.log.host),
        noted.journal._replace(changes=changes),
        [shift.call(call) for call in noted.calls],
        {shift.storage(number): size for number, size in noted.sizes.items()},
        shift.state(noted.state),
        with_numbers(noted.results, shift.storage),
    )


def _with_after(node: Node, after: tuple[int, ...]) -> Node:
    """A node that waits for others; quicker than dataclasses.replace, for millions of nodes."""
    other = object.__new__(type(node))
    fields = vars(other)
    fields.update(vars(node))
    fields["after"] = after
    return other
