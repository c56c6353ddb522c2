"""Which operator reads what another one has written, in a program that torch.compile compiles.

Called by compiled.py, which notes operators, and by fusion.py, which fuses them. Pure functions of
plain data, in the process of a rank that is recorded.

An operator that changes a tensor in place gives its storage another value, so each value is written
once, as in the graphs of torch.compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# what the compiler makes of an operator
FUSED = (
    "fused"  # a part of a kernel: each of its results, or each row of them, from its own numbers
)
COLUMNS = "columns"  # it adds up over rows: a kernel of its own, which computes what it reads
HELD = -1  # the index of no node, for what the program itself reads
OPAQUE = "opaque"  # a kernel as it is: a product of matrices, attention, or not compiled at all


class Access(NamedTuple):
    """A part of a storage that an operator reads or writes.

    Attributes:
        storage: its number.
        begin: where the part begins, in bytes.
        num_bytes: its size.
        is_reduced: of what is written, whether it is the result of a reduction, which is much
            smaller than what the operator reads, and is computed once.
    """

    storage: int
    begin: int
    num_bytes: int
    is_reduced: bool = False


@dataclass(eq=False)
class Value:
    """What a storage holds from one write to the next.

    Attributes:
        storage: the number of the storage.
        writer: the operator; None for what was there before.
        is_inlined: whether a kernel that needs it may compute it again from what the writer has
            read.
        readers: all operators that read it.
    """

    storage: int
    writer: Operation | None
    is_inlined: bool
    readers: list[Operation] = field(default_factory=list)


class Read(NamedTuple):
    """A part of a value that is read."""

    value: Value
    begin: int
    num_bytes: int


@dataclass(eq=False)
class Operation:
    """An operator that was called, or a collective.

    Attributes:
        node: its index among the recorded nodes.
        role: "fused", "columns" or "opaque".
        unit: the part of the program that it is compiled with.
        is_compiled: whether it is compiled at all.
        is_backward: whether it is of a backward pass.
        is_again: whether it repeats a part of the forward pass there.
        size: of its largest tensor, in numbers.
        is_by_rows: of a product, whether its left matrix lies in memory row by row; of a
            collective, whether the first dimension of what it is given has more than one element.
        reads, writes: values.
        written: the parts of storages that it writes.
    """

    node: int
    role: str
    unit: int
    is_compiled: bool
    is_backward: bool
    is_again: bool
    size: int
    is_by_rows: bool = False
    reads: list[Read] = field(default_factory=list)
    writes: list[Value] = field(default_factory=list)
    written: list[Access] = field(default_factory=list)


class Added(NamedTuple):
    """An operator, and what it reads and writes, as `Dataflow.add` is given them."""

    operation: Operation
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


class Repeated(NamedTuple):
    """An operator that computes what another one has computed, as of `Dataflow.repeat`."""

    operation: Operation
    repeated: Operation
    storages: tuple[int, ...]


class Dataflow:
    """The operators of a program, in their order, and the values that they read and write.

    Attributes:
        operations: all of them.
        sizes: of storages, in bytes, by their numbers.
        made: storages that a compiled operator has written first.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.sizes: dict[int, int] = {}
        self.made: set[int] = set()
        self._values: dict[int, Value] = {}  # that storages have now, by their numbers
        self.calls: list[Added | Repeated] | None = None  # of the next two methods, for repeats.py

    def add(self, operation: Operation, reads: Iterable[Access], writes: Iterable[Access]) -> None:
        """Note an operator with what it reads and writes."""
        if self.calls is not None:
            reads = tuple(reads)
            writes = tuple(writes)
            self.calls.append(Added(operation, reads, writes))
        for access in reads:
            value = self.value_of(access.storage)
            operation.reads.append(Read(value, access.begin, access.num_bytes))
            if not value.readers or value.readers[-1] is not operation:
                value.readers.append(operation)
        for access in writes:
            if operation.is_compiled and access.storage not in self._values:
                self.made.add(access.storage)
            is_inlined = operation.role == FUSED and not access.is_reduced
            value = Value(access.storage, operation, is_inlined)
            self._values[access.storage] = value
            operation.writes.append(value)
            operation.written.append(access)
        self.operations.append(operation)

    def repeat(self, operation: Operation, repeated: Operation, storages: Sequence[int]) -> None:
        """Note an operator that computes the same as one before, so that nobody needs it.

        Args:
            operation: which reads and writes nothing now.
            repeated: the other one.
            storages: of its results, in the order of those of the other one.
        """
        if self.calls is not None:
            self.calls.append(Repeated(operation, repeated, tuple(storages)))
        for storage, value in zip(storages, repeated.writes, strict=False):
            self._values[storage] = value
            self.made.add(storage)
        self.operations.append(operation)

    def value_of(self, storage: int) -> Value:
        """What a storage holds now."""
        value = self._values.get(storage)
        if value is None:
            value = self._values[storage] = Value(storage, None, False)
        return value
