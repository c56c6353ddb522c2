"""The nodes of a compiled program instead of those of an eager one, and how long storages live.

Called by compiled.py when a program has ended, in the process of a rank that is recorded. Pure
functions of plain data; fusion.py says which kernels there are.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from distlab_predict import micro_pipelined, micro_pipelines
from distlab_predict.dataflow import OPAQUE, Dataflow, Operation
from distlab_predict.fusion import FusedKernel, bytes_of, kernels_of
from distlab_predict.launches import COMPILED, GRAPH, OPERATOR
from distlab_predict.micro_pipelines import Pipelines
from distlab_predict.nodes import BYTES, Call, Kernel, Node, Wait

MOST_NAMES = 5  # of operators in the name of a kernel

Lives = dict[int, tuple[int, int] | None]


@dataclass(frozen=True)
class Fused:
    """What a compiled program has its device do.

    Attributes:
        nodes: in their order.
        lives: by the numbers of the storages that the compiled program makes, the first and the
            last node at which they have memory; None for those that it does without.
        uses: by the numbers of other storages, the last node that reads or writes them.
        places: by a number of old nodes, the number of new nodes that are called by then.
        waits: of the program for its device.
    """

    nodes: list[Node]
    lives: Lives
    uses: dict[int, int]
    places: list[int]
    waits: tuple[Wait, ...]


def fused(
    nodes: Sequence[Node],
    flow: Dataflow,
    bounds: Collection[int],
    waits: Sequence[Wait] = (),
    groups: Collection[str] = (),
    by_hand: bool = False,
) -> Fused:
    """The nodes of a program after what is compiled was fused.

    Args:
        nodes: as the program has called them.
        flow: its operators, of which each is one of the nodes.
        bounds: indices of nodes before which something else begins, as a step.
        waits: of the program for its device, at which a graph ends.
        groups: the names of those with asynchronous tensor parallelism.
        by_hand: whether each kernel is launched as an operator of an eager program is.
    """
    micro_pipelines.without_copies(nodes, flow, groups)
    bounds = {*bounds, *(wait.before for wait in waits)}
    operations: defaultdict[int, list[Operation]] = defaultdict(list)
    for operation in flow.operations:
        operations[operation.node].append(operation)
    runs = _runs(nodes, operations, bounds, waits)
    of_runs = []
    for run in runs:
        of_runs.append([operation for node in run for operation in operations[node]])
    kernels_of_runs = kernels_of(flow, of_runs)
    pipelines = micro_pipelines.pipelines_of(nodes, flow, groups, kernels_of_runs)
    calls = pipelines.calls()
    renewed = _Renewed(nodes, flow, pipelines, by_hand)
    for run, own, kernels in zip(runs, of_runs, kernels_of_runs, strict=True):
        if run.start in calls:
            renewed.leave_out(run.start)
        elif own:
            renewed.add(run, kernels)
        else:
            renewed.take_over(run.start)
    return renewed.fused(waits)


def _runs(
    nodes: Sequence[Node],
    operations: Mapping[int, Sequence[Operation]],
    bounds: Collection[int],
    waits: Sequence[Wait],
) -> list[range]:
    """Nodes that are called one after another, and nothing else waits for one in their middle.

    What is not compiled, and each node that is not known here, is alone.
    """
    waited_for: set[int] = set()
    for index, node in enumerate(nodes):
        waited_for.update(before for before in node.after if before != index - 1)
    for wait in waits:
        waited_for.update(wait.ends)
    runs: list[range] = []
    begin = 0
    for index in range(1, len(nodes) + 1):
        goes_on = (
            index < len(nodes)
            and nodes[index].after == (index - 1,)
            and index - 1 not in waited_for
            and index not in bounds
            and _are_compiled_together(operations.get(index - 1), operations.get(index))
        )
        if not goes_on:
            runs.append(range(begin, index))
            begin = index
    return [run for run in runs if run]


def _are_compiled_together(
    one: Sequence[Operation] | None, other: Sequence[Operation] | None
) -> bool:
    """Whether two nodes are of the same graph: those of the two passes are not."""
    if one is None or other is None or not (one[0].is_compiled and other[0].is_compiled):
        return False
    return one[0].unit == other[0].unit and one[0].is_backward == other[0].is_backward


class _Renewed:
    """New nodes, as they are made one after another.

    Args:
        nodes: the old ones.
        flow: their operators.
        pipelines: which of them become pipelines.
        by_hand: as of `fused`.
    """

    def __init__(self, nodes: Sequence[Node], flow: Dataflow, pipelines: Pipelines, by_hand: bool):
        self._old = nodes
        self._by_hand = by_hand
        self._pipelines = pipelines
        self._sizes = flow.sizes
        self._nodes: list[Node] = []
        self._ends: dict[int, tuple[int, ...]] = {}  # what stands for an old node, for others
        self._places = [0]
        self._graph: tuple[int, bool] | None = None  # the last one of those that were compiled
        self._lives: Lives = dict.fromkeys(storage for storage in flow.made if storage >= 0)
        self._uses: dict[int, int] = {}

    def fused(self, waits: Sequence[Wait]) -> Fused:
        """What was made of all nodes."""
        new = []
        for wait in waits:
            ends = self._new_ends(wait.ends)
            new.append(Wait(self._places[wait.before], ends))
        return Fused(self._nodes, self._lives, self._uses, self._places, tuple(new))

    def take_over(self, index: int) -> None:
        """Take an old node as it is."""
        self._nodes.append(replace(self._old[index], after=self._after(index)))
        self._ends[index] = (len(self._nodes) - 1,)
        self._places.append(len(self._nodes))

    def leave_out(self, index: int) -> None:
        """Have no node for a call whose pipeline is where its products are."""
        self._ends.setdefault(index, self._after(index))
        self._places.append(len(self._nodes))

    def add(self, run: range, kernels: Sequence[FusedKernel]) -> None:
        """Make the nodes of a run; each waits for the one before it."""
        before = len(self._nodes)
        ends = self._after(run.start)
        for call, together in self._together(kernels):
            if call is None:
                made = [self._node_of(kernel, ends) for kernel in together]
            else:
                made = self._pipeline(call, together, ends)
            self._nodes += made
            index = len(self._nodes) - 1
            for kernel in together:
                self._note_life(kernel, index)
            ends = (index,)
        self._ends[run[-1]] = ends
        added = len(self._nodes) - before
        for number in range(1, len(run) + 1):
            self._places.append(before + added * number // len(run))

    def _together(
        self, kernels: Sequence[FusedKernel]
    ) -> Iterator[tuple[int | None, list[FusedKernel]]]:
        """Kernels of the same pipeline, with the index of its call, and each other one alone."""
        calls = {**self._pipelines.gathers, **self._pipelines.scatters}
        for call, group in itertools.groupby(kernels, calls.get):
            if call is None:
                for kernel in group:
                    yield None, [kernel]
            else:
                yield call, list(group)

    def _pipeline(
        self, index: int, kernels: Sequence[FusedKernel], after: tuple[int, ...]
    ) -> list[Node]:
        """The nodes of a pipeline.

        Args:
            index: of its call.
            kernels: of its products.
            after: the new nodes that these wait for.
        """
        call = self._old[index]
        assert isinstance(call, Call)
        products = []
        for kernel in kernels:
            (operation,) = kernel.operations
            by_rows = operation.reads[0].num_bytes
            by_rows += sum(access.num_bytes for access in operation.written)
            product = self._node_of(kernel, after)
            assert isinstance(product, Kernel)
            products.append((product, by_rows))
        first = len(self._nodes)
        if index in self._ends:  # the call comes before its products
            after = tuple(sorted({*after, *self._ends[index]}))
            made = micro_pipelined.gathered(first, after, call, products)
        else:
            made = micro_pipelined.scattered(first, after, call, *products[0])
        self._ends[index] = (first + len(made) - 1,)
        return made

    def _after(self, index: int) -> tuple[int, ...]:
        """The new nodes that an old one waits for."""
        return self._new_ends(self._old[index].after)

    def _new_ends(self, old: Iterable[int]) -> tuple[int, ...]:
        """The new nodes that have ended when these old ones have."""
        ends: set[int] = set()
        for index in old:
            ends.update(self._ends[index])
        return tuple(sorted(ends))

    def _node_of(self, kernel: FusedKernel, after: tuple[int, ...]) -> Node:
        """A node that does what a kernel does."""
        old = [self._old[operation.node] for operation in kernel.operations]
        host = self._host_of(kernel.operations[0])
        if kernel.role == OPAQUE:
            return replace(old[0], after=after, host=host)
        parts = [node for node in old if isinstance(node, Kernel)]
        names = list(dict.fromkeys(node.name.strip("_") for node in parts))
        if len(names) > MOST_NAMES:
            names = [*names[:MOST_NAMES], "..."]
        largest = max(parts, key=lambda node: node.num_bytes)
        return Kernel(
            after=after,
            name="_".join(["fused", *names]),
            flops=0,
            num_bytes=sum(bytes_of(kernel, self._sizes)),
            again=all(node.again for node in parts),
            kind=BYTES,
            dtype=largest.dtype,
            line=largest.line,
            host=host,
        )

    def _host_of(self, operation: Operation) -> float:
        """What the processor does until the kernel of this operator is launched."""
        if not operation.is_compiled:
            return self._old[operation.node].host
        if self._by_hand:
            return OPERATOR
        graph = (operation.unit, operation.is_backward)
        if graph == self._graph:
            return COMPILED
        self._graph = graph
        return GRAPH + COMPILED

    def _note_life(self, kernel: FusedKernel, index: int) -> None:
        """Note the storages that a kernel uses."""
        for value in (*kernel.loads, *kernel.stores):
            if value.storage in self._lives:
                first, _ = self._lives[value.storage] or (index, index)
                self._lives[value.storage] = (first, index)
            else:
                self._uses[value.storage] = index
