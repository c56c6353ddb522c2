"""Which kernels torch.compile makes of a program's operators, and what they read and write.

Called by compiled.py when a program has ended. Pure functions of plain data, in the process of a
rank that is recorded. The rules are those of torch 2.13's inductor on a GPU
(torch/_inductor/scheduler.py and lowering.py) and of the partition into forward and backward pass
(torch/_functorch/partitioners.py), with their default settings:

- Operators without a product, attention or collective between them are one kernel, if one reads
  what another writes, or both read the same and have as many numbers. It reads what others have
  written once, and writes what others need once.
- A result of another kernel is read, if it was written anyway. Otherwise it is computed again from
  what was read for it, if that is few tensors (MOST_READS). Results of reductions are written.
- A sum over rows, as for the gradient of a norm's weight, is a kernel of its own.
- What only pointwise operators of the backward pass need is not kept for it: it is computed again
  from what is kept anyway, or from something no larger.

Within a level, no operator waits for a product of the same level; levels are what orders kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from distlab_predict.dataflow import COLUMNS, FUSED, OPAQUE, Dataflow, Operation, Read, Value

# torch._inductor.config.realize_reads_threshold, and realize_acc_reads_threshold
MOST_READS = 4  # to compute a value that several operators read
MOST_READS_FOR_ONE = 8
ORDER = {FUSED: 0, COLUMNS: 1, OPAQUE: 2}  # of kernels of a level


@dataclass(eq=False)
class FusedKernel:
    """What one kernel computes: an opaque operator, or several others.

    Attributes:
        operations: in the order of the program.
        loads: what it reads, with the parts of each value.
        stores: what it writes.
    """

    operations: list[Operation]
    loads: dict[Value, set[tuple[int, int]]] = field(default_factory=dict)
    stores: list[Value] = field(default_factory=list)

    @property
    def role(self) -> str:
        return self.operations[0].role


def kernels_of(flow: Dataflow, runs: Sequence[Sequence[Operation]]) -> list[list[FusedKernel]]:
    """The kernels that do something, by run, in an order in which they can be called.

    Args:
        flow: the operators.
        runs: those that are called one after another, without anything else that waits for them;
            kernels are made of operators of one run.
    """
    kernels = [_kernels_of_run(run) for run in runs]
    home = {}
    for own in kernels:
        for kernel in own:
            for operation in kernel.operations:
                home[operation] = kernel
    sources = _Sources(flow, home)
    found: list[list[FusedKernel]] = []
    needed: set[Value] = set()
    for own in reversed(kernels):  # what nobody needs is not computed
        used = [kernel for kernel in reversed(own) if _complete(kernel, sources, needed, home)]
        found.append(used[::-1])
    return found[::-1]


def _complete(
    kernel: FusedKernel,
    sources: _Sources,
    needed: set[Value],
    home: Mapping[Operation, FusedKernel],
) -> bool:
    """Find what a kernel reads and writes, and return whether anybody needs it.

    Args:
        kernel: after all that come before it in the opposite order.
        sources: of values.
        needed: what later kernels read; what this one reads is added.
        home: the kernel of each operator.
    """
    for operation in kernel.operations:
        for value in operation.writes:
            if value in sources.kept or (not value.is_inlined and value in needed):
                kernel.stores.append(value)
    if kernel.role != OPAQUE and not kernel.stores:
        return False
    for operation in kernel.operations:
        for read in operation.reads:
            for value, begin, num_bytes in sources.of(read):
                if value.writer is None or home[value.writer] is not kernel:
                    kernel.loads.setdefault(value, set()).add((begin, num_bytes))
    needed.update(kernel.loads)
    return True


# --- which operators are one kernel ---


def _kernels_of_run(run: Sequence[Operation]) -> list[FusedKernel]:
    """The kernels of operators that are called one after another, in their new order.

    First those of level 0: what is fused, sums over rows, what is opaque; then those of level 1.
    """
    by_level: defaultdict[tuple[int, int], list[Operation]] = defaultdict(list)
    for operation, level in _levels(run).items():
        by_level[level, ORDER[operation.role]].append(operation)
    kernels: list[FusedKernel] = []
    for (_, place), operations in sorted(by_level.items()):
        groups = [[operation] for operation in operations]
        if place != ORDER[OPAQUE]:
            groups = _together(operations)
        kernels += [FusedKernel(group) for group in groups]
    return kernels


def _levels(run: Sequence[Operation]) -> dict[Operation, int]:
    """How many opaque operators, or sums over rows, must have ended before each operator."""
    levels: dict[Operation, int] = {}
    for operation in run:
        level = 0
        for value, *_ in operation.reads:
            before = levels.get(value.writer) if value.writer is not None else None
            if before is not None and value.writer is not None:
                level = max(level, before + (value.writer.role != FUSED))
        levels[operation] = level
    return levels


def _together(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Operators of a level that belong into one kernel each."""
    groups = _Groups()
    readers: dict[tuple[Value, int], Operation] = {}
    own = set(operations)
    for operation in operations:
        groups.add(operation)
        for value, *_ in operation.reads:
            if value.writer in own and value.writer is not None:
                groups.join(operation, value.writer)
            first = readers.setdefault((value, operation.size), operation)
            groups.join(operation, first)
    return groups.members()


class _Groups:
    """Operators that are joined into groups, which stay in the order of their first ones."""

    def __init__(self) -> None:
        self._leader: dict[Operation, Operation] = {}

    def add(self, operation: Operation) -> None:
        self._leader[operation] = operation

    def join(self, one: Operation, other: Operation) -> None:
        self._leader[self._first(one)] = self._first(other)

    def _first(self, operation: Operation) -> Operation:
        while self._leader[operation] is not operation:
            self._leader[operation] = self._leader[self._leader[operation]]
            operation = self._leader[operation]
        return operation

    def members(self) -> list[list[Operation]]:
        found: defaultdict[Operation, list[Operation]] = defaultdict(list)
        for operation in self._leader:
            found[self._first(operation)].append(operation)
        return list(found.values())


# --- what is written, and what is computed again ---


class _Sources:
    """What a kernel must read to have a value.

    Attributes:
        kept: values that are written, of those that could be computed again, and all others that
            are written for others than fused kernels.
    """

    def __init__(self, flow: Dataflow, home: Mapping[Operation, FusedKernel]):
        self.kept: set[Value] = set()
        self._flow = flow
        self._home = home
        self._found: dict[Value, tuple[Read, ...]] = {}  # of values that are computed again
        self._in_backward: set[Value] = set()  # what the backward pass reads anyway
        for operation in flow.operations:
            if operation.is_backward:
                for value, *_ in operation.reads:
                    if not value.is_inlined or operation.role == OPAQUE:
                        self._in_backward.add(value)
        for operation in flow.operations:
            for value in operation.writes:
                self._decide(value, operation)

    def of(self, read: Read) -> tuple[Read, ...]:
        """What is read instead of a part of a value: itself, or what it is computed from."""
        found = self._found.get(read.value)
        if found is None:
            return (read,)
        whole = self._flow.sizes[read.value.storage]
        if read.num_bytes >= whole:
            return found
        parts = []
        for value, begin, num_bytes in found:
            parts.append(Read(value, begin, -(-num_bytes * read.num_bytes // whole)))
        return tuple(parts)

    def _decide(self, value: Value, writer: Operation) -> None:
        """Decide whether a value is written; those that it is made of have been decided before."""
        if _must_be_written(value, writer):
            self.kept.add(value)
            self._note_kept(value, writer)
            return
        if not value.is_inlined:
            return
        found = tuple(dict.fromkeys(self._made_of(writer)))
        outside = [one for one in value.readers if self._home[one] is not self._home[writer]]
        if outside and self._is_worth_keeping(value, writer, found, outside):
            self.kept.add(value)
            self._note_kept(value, writer)
        else:
            self._found[value] = found

    def _note_kept(self, value: Value, writer: Operation) -> None:
        if not writer.is_backward and any(one.is_backward for one in value.readers):
            self._in_backward.add(value)

    def _made_of(self, writer: Operation) -> Iterator[Read]:
        """What a fused operator's results are computed from."""
        for read in writer.reads:
            yield from self.of(read)
        for value in writer.writes:
            if not value.is_inlined:  # the mean of a norm, which is not computed again
                yield Read(value, 0, self._flow.sizes[value.storage])

    def _is_worth_keeping(
        self,
        value: Value,
        writer: Operation,
        found: Sequence[Read],
        outside: Sequence[Operation],
    ) -> bool:
        """Whether it is better to write a value than to compute it again."""
        most = MOST_READS if len(value.readers) > 1 else MOST_READS_FOR_ONE
        if len({one.value for one in found}) > most:
            return True
        if writer.is_backward or not any(one.is_backward for one in outside):
            return False
        more = {}
        for one in found:
            if one.value.writer is not None and one.value not in self._in_backward:
                more[one.value] = self._flow.sizes[one.value.storage]
        if sum(more.values()) > self._flow.sizes[value.storage]:
            return True
        self._in_backward.update(more)
        return False


def _must_be_written(value: Value, writer: Operation) -> bool:
    """Whether somebody reads a value who cannot compute it.

    What no operator reads is a result of the program, such as its loss, or a gradient.
    """
    if writer.role == OPAQUE:
        return True
    if not value.readers and not writer.is_again:
        return True
    for reader in value.readers:
        if reader.role == OPAQUE:
            return True
        if reader.unit != writer.unit and reader.is_backward == writer.is_backward:
            return True
    return False


class Bytes(NamedTuple):
    """What a kernel reads and writes, in bytes."""

    read: int
    written: int


def bytes_of(kernel: FusedKernel, sizes: Mapping[int, int]) -> Bytes:
    """What a fused kernel reads and writes.

    Args:
        kernel: with its loads and stores.
        sizes: of storages, by their numbers.
    """
    read = 0
    for value, parts in kernel.loads.items():
        read += min(sizes[value.storage], sum(num_bytes for _, num_bytes in parts))
    stores = set(kernel.stores)
    parts_of: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for operation in kernel.operations:
        for value, access in zip(operation.writes, operation.written, strict=True):
            if value in stores:
                parts_of[value.storage].add((access.begin, access.num_bytes))
    written = 0
    for storage, parts in parts_of.items():
        written += min(sizes[storage], sum(num_bytes for _, num_bytes in parts))
    return Bytes(read, written)
