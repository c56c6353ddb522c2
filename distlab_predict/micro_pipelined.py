"""The nodes of a gather and its products, or of a product and its scatter, that are a pipeline.

Called by fused.py, in the process of a rank that is recorded; micro_pipelines.py says which they
are. Pure functions of plain data. The streams are those of torch 2.13
(torch/distributed/_symmetric_memory/__init__.py, `_pipelined_multi_all_gather_and_consume` and
`_pipelined_produce_and_all2all`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distlab_predict.launches import COMPILED
from distlab_predict.nodes import BYTES, FETCH, Call, Kernel, Node

Ends = tuple[int, ...]  # indices of nodes that must have ended


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
