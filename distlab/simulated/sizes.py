"""How many bytes a collective sends, and which root it has, found in the arguments of its method.

Called by backend.py on every rank, for calls of torch.distributed and for calls of the group's own
methods.
"""

import functools
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor

from distlab.compat import torch as private

Sizes = tuple[int, ...]  # CollectiveCall.sent


def root_of(args: Sequence[object]) -> int:
    """The root of a collective, as its place among the members.

    torch.distributed passes it in the options. A program that calls the group's own method may
    give it as a number, or leave the options out: torch's root is 0 then.
    """
    for given in args:
        if hasattr(given, "rootRank"):
            return int(given.rootRank)
        if isinstance(given, Integral):
            return int(given)
    return 0


def sizes_of_argument(place: int, n: int, *args: Any) -> Sizes:
    """All bytes of one argument, a tensor or a list of tensors."""
    tensors = as_list(args[place])
    return (bytes_of(tensors),)


def sizes_of_elements(n: int, given: Tensor | list[Tensor], *_: Any) -> Sizes:
    """All bytes of the first argument, and those of an element."""
    tensors = as_list(given)
    return bytes_of(tensors), tensors[0].element_size()


def sizes_of_splits(
    n: int, output: Tensor, given: Tensor, to_get: list[int], to_send: list[int], *_: Any
) -> Sizes:
    """For each member the bytes of its rows; where no numbers of rows are given, equal shares."""
    if not to_send:
        share = given.nbytes // n
        return (share,) * n
    bytes_of_row = given[:1].nbytes
    return tuple(rows * bytes_of_row for rows in to_send)


def sizes_of_lists(n: int, outputs: list[Tensor], inputs: list[Tensor], *_: Any) -> Sizes:
    """For each member the bytes of its tensor."""
    return tuple(tensor.nbytes for tensor in inputs)


def as_list(given: Tensor | list[Tensor]) -> list[Tensor]:
    return [given] if isinstance(given, Tensor) else given


def bytes_of(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


FIRST_ARGUMENT = functools.partial(sizes_of_argument, 0)
SECOND_ARGUMENT = functools.partial(sizes_of_argument, 1)
# Collectives, how to find their sizes, and ProcessGroup's methods. Some methods have two names: one
# before torch 2.13, and one since.
METHODS: Sequence[tuple[str, Callable[..., Sizes], Sequence[str]]] = (
    ("all_reduce", sizes_of_elements, ("allreduce", "allreduce_coalesced")),
    ("broadcast", FIRST_ARGUMENT, ("broadcast",)),
    ("reduce", FIRST_ARGUMENT, ("reduce",)),
    (
        "all_gather",
        SECOND_ARGUMENT,
        (
            "allgather",
            private.ALL_GATHER_BASE,
            "all_gather_single",
            "allgather_coalesced",
            "allgather_into_tensor_coalesced",
            "all_gather_single_coalesced",
        ),
    ),
    ("gather", SECOND_ARGUMENT, ("gather",)),
    ("scatter", FIRST_ARGUMENT, ("scatter",)),
    (
        "reduce_scatter",
        FIRST_ARGUMENT,
        (
            "reduce_scatter",
            private.REDUCE_SCATTER_BASE,
            "reduce_scatter_single",
            "reduce_scatter_tensor_coalesced",
            "reduce_scatter_single_coalesced",
        ),
    ),
    ("all_to_all", sizes_of_lists, ("alltoall",)),
    ("all_to_all", sizes_of_splits, ("alltoall_base", "all_to_all_single")),
    ("barrier", lambda n, *_: (0,), ("barrier",)),
)
