"""Asynchronous tensor parallelism: products begin with the first part that ranks gather.

Called by compiled.py and fused.py when a program has ended, in the process of a rank that is
recorded. Pure functions of plain data. torch.compile makes these pipelines where
`torch._inductor.config._micro_pipeline_tp` is set, in groups that have symmetric memory
(`enable_symm_mem_for_group`). The rules are those of torch 2.13
(torch/_inductor/fx_passes/micro_pipeline_tp.py, and torch/distributed/_symmetric_memory):

- What an all-gather has put together is multiplied from the left: each rank multiplies its own part
  first. Meanwhile the copy engine fetches the next one from another rank, and no multiprocessor is
  busy with it. Gradients of weights multiply the whole, later.
- A product is cut into the parts that a reduce-scatter sends: each part is fetched by the rank that
  it is for while the next one is multiplied, and at last the parts of all ranks are added up.
- Of a batch of one sequence, whose places are gathered, no pipeline is made: torch does not copy
  there, and its compiler looks for the copy.
- What torch gathers or scatters along another dimension than the first one it copies (`cat`). Here
  nothing is copied for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distlab_predict.dataflow import FUSED, OPAQUE, Dataflow, Operation, Read, Value
from distlab_predict.fusion import FusedKernel
from distlab_predict.launches import COMPILED
from distlab_predict.nodes import BYTES, FETCH, PRODUCT, Call, Kernel, Node

Ends = tuple[int, ...]  # indices of nodes that must have ended

HELD = -1  # the index of no node, see compiled.py


@dataclass(frozen=True)
class Pipelines:
    """Which calls and products of a program become pipelines.

    Attributes:
        gathers: by a kernel that multiplies what was gathered, the index of the all-gather.
        scatters: by a kernel whose result is scattered, the index of the reduce-scatter.
    """

    gathers: Mapping[FusedKernel, int] = field(default_factory=dict)
    scatters: Mapping[FusedKernel, int] = field(default_factory=dict)

    def calls(self) -> set[int]:
        """The indices of all of these calls."""
        return {*self.gathers.values(), *self.scatters.values()}


# --- what can be a pipeline ---


def without_copies(nodes: Sequence[Node], flow: Dataflow, groups: Collection[str]) -> None:
    """Take what is copied behind an all-gather, and before a reduce-scatter, out of a program."""
    for operation in flow.operations:
        name = _call_of(nodes, operation, groups)
        if name == "all_gather":
            (value,) = operation.writes
            for reader in list(value.readers):
                if _copies(nodes, reader):
                    _leave_out(reader)
        elif name == "reduce_scatter":
            value = _scattered_by(operation)
            if value.writer is not None and _copies(nodes, value.writer):
                _leave_out(value.writer)


def pipelines_of(
    nodes: Sequence[Node],
    flow: Dataflow,
    groups: Collection[str],
    runs: Sequence[list[FusedKernel]],
) -> Pipelines:
    """The pipelines of a program, whose products come before others that read the same.

    Args:
        nodes: as the program has called them.
        flow: its operators.
        groups: the names of those that can have pipelines.
        runs: the kernels of each run, see fused.py; brought into another order.
    """
    gathers: dict[FusedKernel, int] = {}
    scatters: dict[FusedKernel, int] = {}
    run_of: dict[Operation, list[FusedKernel]] = {}
    for run in runs:
        for kernel in run:
            run_of.update(dict.fromkeys(kernel.operations, run))
    for operation in flow.operations:
        name = _call_of(nodes, operation, groups)
        if name == "all_gather" and operation.is_by_rows:
            (value,) = operation.writes
            for kernel in _multiplied_first(value, _run_that_reads(value, run_of), nodes):
                gathers[kernel] = operation.node
        elif name == "reduce_scatter":
            value = _scattered_by(operation)
            if value.readers == [operation] and value.writer in run_of:
                run = run_of[value.writer]
                (kernel,) = [one for one in run if value.writer in one.operations]
                # a product of both kinds is a pipeline of the first one
                if _is_by_rows(kernel, nodes) and kernel not in gathers:
                    scatters[kernel] = operation.node
    return Pipelines(gathers, scatters)


def _call_of(nodes: Sequence[Node], operation: Operation, groups: Collection[str]) -> str:
    """The name of the call that an operation is, if it is one of these groups; "" if not."""
    if operation.node == HELD:
        return ""
    node = nodes[operation.node]
    if not isinstance(node, Call) or node.stream not in groups or len(node.members) == 1:
        return ""
    return node.name


def _scattered_by(operation: Operation) -> Value:
    """What a reduce-scatter takes; it is noted to read the tensor that it writes as well."""
    written = {value.storage for value in operation.writes}
    return next(read.value for read in operation.reads if read.value.storage not in written)


def _copies(nodes: Sequence[Node], operation: Operation) -> bool:
    """Whether an operator does nothing but put the parts of one value into another order."""
    return (
        operation.role == FUSED
        and nodes[operation.node].name == "cat"
        and len({read.value for read in operation.reads}) == 1
        and len(operation.writes) == 1
    )


def _leave_out(copy: Operation) -> None:
    """Have the readers of a copy read what was copied."""
    source = copy.reads[0].value
    (copied,) = copy.writes
    source.readers.remove(copy)
    for reader in copied.readers:
        reads = []
        for read in reader.reads:
            reads.append(Read(source, *read[1:]) if read.value is copied else read)
        reader.reads[:] = reads
        source.readers.append(reader)
    copy.reads.clear()
    copy.writes.clear()
    copy.written.clear()


def _run_that_reads(
    value: Value, run_of: Mapping[Operation, list[FusedKernel]]
) -> list[FusedKernel]:
    """The run of the first operator that reads a value; an empty one if nothing compiled does."""
    for reader in value.readers:
        if reader in run_of:
            return run_of[reader]
    return []


def _multiplied_first(
    value: Value, run: list[FusedKernel], nodes: Sequence[Node]
) -> list[FusedKernel]:
    """The products of a value's rows in a run, which are put before others that read it.

    Returns:
        none, if something else must be computed from the value before.
    """
    reading = [kernel for kernel in run if value in kernel.loads]
    products = []
    for kernel in reading:
        if _is_by_rows(kernel, nodes) and kernel.operations[0].reads[0].value is value:
            products.append(kernel)
    others = [kernel for kernel in run if kernel not in products]
    before = _needed_by(products, others)
    if any(value in kernel.loads for kernel in before):
        return []
    after = [kernel for kernel in others if kernel not in before]
    run[:] = [*before, *products, *after]
    return products


def _needed_by(
    products: Sequence[FusedKernel], kernels: Sequence[FusedKernel]
) -> list[FusedKernel]:
    """The kernels that these products need, themselves or through others, in their order."""
    needed = {value for product in products for value in product.loads}
    found = []
    for kernel in reversed(kernels):
        if needed.intersection(kernel.stores):
            found.append(kernel)
            needed.update(kernel.loads)
    return found[::-1]


def _is_by_rows(kernel: FusedKernel, nodes: Sequence[Node]) -> bool:
    """Whether a kernel is a product of which each part of the rows can be computed by itself."""
    operation = kernel.operations[0]
    node = nodes[operation.node]
    return (
        kernel.role == OPAQUE
        and operation.is_by_rows
        and isinstance(node, Kernel)
        and node.kind == PRODUCT
    )


# --- what a pipeline does ---


def gathered(
    first: int, after: tuple[int, ...], call: Call, products: Sequence[tuple[Kernel, int]]
) -> list[Node]:
    """The nodes that gather a tensor and multiply its parts.

    Parts are fetched and multiplied on two streams in turn, so that a part is fetched when the
    last but one before it has been multiplied. The last node ends last.

    Args:
        first: the index of the first of these nodes.
        after: indices of the nodes that all of it waits for.
        call: the all-gather.
        products: that multiply, each with the bytes that it reads and writes for the whole tensor;
            the rest of its bytes it reads for each part.
    """
    parts = len(call.members)
    (size,) = call.sent
    made: list[Node] = [_moved(after, "copy", 2 * size, call)]  # into symmetric memory
    copied = multiplied = first
    last_but_one = first
    for part in range(parts):
        ends: Ends = (multiplied,)
        if part > 0:
            made.append(_fetched(tuple(sorted({copied, last_but_one})), call, size))
            copied = first + len(made) - 1
            ends = (multiplied, copied)
        last_but_one = multiplied
        for product, by_rows in products:
            made.append(_part_of(product, parts, by_rows, ends))
            multiplied = first + len(made) - 1
            ends = (multiplied,)
    return made


def scattered(
    first: int, after: tuple[int, ...], call: Call, product: Kernel, by_rows: int
) -> list[Node]:
    """The nodes that multiply and have the parts of the result added up on their ranks.

    Args:
        first, after: as of `gathered`.
        call: the reduce-scatter.
        product: whose result it scatters.
        by_rows: bytes that it reads and writes for the whole result.
    """
    parts = len(call.members)
    (size,) = call.sent
    made: list[Node] = []
    multiplied: Ends = after
    copied: Ends = after
    before: Ends = after
    for part in range(parts):
        made.append(_part_of(product, parts, by_rows, tuple(sorted({*multiplied, *before}))))
        multiplied = _last(first, made)
        if part < parts - 1:  # the last one is this rank's own
            before = copied
            made.append(_fetched(tuple(sorted({*multiplied, *copied})), call, size))
            copied = _last(first, made)
    made.append(_moved((*multiplied, *copied), "sum", (parts + 1) * size, call))
    return made


def _last(first: int, made: Sequence[Node]) -> tuple[int, ...]:
    """The index of the last of these nodes, as what others wait for."""
    return (first + len(made) - 1,)


def _part_of(product: Kernel, parts: int, by_rows: int, after: tuple[int, ...]) -> Kernel:
    """A product of some of the rows."""
    batch, m, n, k = product.shape
    always = max(0, product.num_bytes - by_rows)
    return replace(
        product,
        after=after,
        flops=product.flops // parts,
        num_bytes=always + by_rows // parts,
        shape=(batch, -(-m // parts), n, k),
        host=COMPILED,
    )


def _fetched(after: tuple[int, ...], call: Call, size: int) -> Call:
    """A part that is fetched from another rank."""
    return replace(call, after=after, name=FETCH, sent=(size,), host=COMPILED)


def _moved(after: tuple[int, ...], name: str, num_bytes: int, call: Call) -> Kernel:
    """A kernel beside the products."""
    return Kernel(after, name, 0, num_bytes, kind=BYTES, line=call.line, host=COMPILED)
