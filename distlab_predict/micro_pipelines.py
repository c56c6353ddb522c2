"""Asynchronous tensor parallelism: products begin with the first part that ranks gather.

Called by fused.py when a program has ended, in the process of a rank that is recorded; what such a
pipeline does is in micro_pipelined.py. Pure functions of plain data. torch.compile makes these
pipelines where `torch._inductor.config._micro_pipeline_tp` is set, in groups that have symmetric
memory (`enable_symm_mem_for_group`). The rules are those of torch 2.13
(torch/_inductor/fx_passes/micro_pipeline_tp.py):

- What an all-gather has put together is multiplied from the left: each rank multiplies its own part
  first. Meanwhile the copy engine fetches the next one from another rank, and no multiprocessor is
  busy with it. Gradients of weights multiply the whole, later.
- A product is cut into the parts that a reduce-scatter sends: each part is fetched by the rank that
  it is for while the next one is multiplied, and at last the parts of all ranks are added up.
- Of a batch of one sequence, whose places are gathered along the second dimension, no pipeline is
  made: torch does not copy there, and its compiler looks for the copy. A program can gather the
  sequence as rows of a matrix instead.
- What torch gathers or scatters along another dimension than the first one it copies (`cat`). In a
  pipeline it does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from distlab_predict.dataflow import FUSED, HELD, OPAQUE, Dataflow, Operation, Read, Value
from distlab_predict.fusion import FusedKernel
from distlab_predict.nodes import PRODUCT, Call, Kernel, Node


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
    """Take what is copied between products and calls that become pipelines out of a program."""
    for operation in flow.operations:
        name = _call_of(nodes, operation, groups)
        if name == "all_gather" and operation.is_by_rows:
            (value,) = operation.writes
            for reader in list(value.readers):
                if _copies(nodes, reader) and any(map(_multiplies, reader.writes[0].readers)):
                    _leave_out(reader)
        elif name == "reduce_scatter":
            scattered = _scattered_by(operation)
            copy = scattered.writer if scattered is not None else None
            if copy is None or not _copies(nodes, copy):
                continue
            product = copy.reads[0].value.writer
            if product is not None and _multiplies(product):
                _leave_out(copy)


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
            for product in _multiplied_first(value, _run_that_reads(value, run_of), nodes):
                gathers[product] = operation.node
        elif name == "reduce_scatter":
            scattered = _scattered_kernel(operation, run_of)
            # a product of both kinds is a pipeline of the first one
            if scattered is None or not _is_by_rows(scattered, nodes) or scattered in gathers:
                continue
            scatters[scattered] = operation.node
    return Pipelines(gathers, scatters)


def _call_of(nodes: Sequence[Node], operation: Operation, groups: Collection[str]) -> str:
    """The name of the call that an operation is, if it is one of these groups; "" if not.

    One that gathers or scatters several tensors at once is none of those that become pipelines.
    """
    if operation.node == HELD or len(operation.writes) != 1:
        return ""
    node = nodes[operation.node]
    if not isinstance(node, Call) or node.stream not in groups or len(node.members) == 1:
        return ""
    return node.name


def _scattered_by(operation: Operation) -> Value | None:
    """What a reduce-scatter takes; it is noted to read the tensor that it writes as well."""
    written = {value.storage for value in operation.writes}
    return next((one.value for one in operation.reads if one.value.storage not in written), None)


def _multiplies(operation: Operation) -> bool:
    """Whether an operator is a product of rows that lie one after another."""
    return operation.role == OPAQUE and operation.is_compiled and operation.is_by_rows


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


def _scattered_kernel(
    operation: Operation, run_of: Mapping[Operation, list[FusedKernel]]
) -> FusedKernel | None:
    """The kernel whose result a reduce-scatter takes, if nothing else reads it."""
    value = _scattered_by(operation)
    if value is None or value.writer is None or value.readers != [operation]:
        return None
    for kernel in run_of.get(value.writer, []):
        if value.writer in kernel.operations:
            return kernel
    return None


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
