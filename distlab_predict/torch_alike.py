"""What the tensors of a part of a program are like, and others that are like them.

Called by repeats.py, in the process of a rank that is recorded. Tried with torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from distlab_predict import torch_fake as fake
from distlab_predict.routing import mark_of

PART = "_local_tensor"  # the attribute of a DTensor

NumberOf = Callable[[Tensor], int | None]  # the number of a tensor's storage in the journal


class CannotRepeat(Exception):
    """A part of a program gives it something that cannot be made again."""


class Leaf(NamedTuple):
    """A tensor on fake memory.

    Attributes:
        number: of its storage; None if the journal has none.
        offset: where it begins in its storage, in elements.
        num_bytes: of the storage.
        mark: of routing.py.
    """

    number: int | None
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    num_bytes: int
    mark: Hashable


class Distributed(NamedTuple):
    """A DTensor.

    Attributes:
        part: this rank's.
        mesh: by the attribute's name, if the tensor is made of it as well.
        others: what else it is made of.
    """

    part: Leaf
    mesh: dict[str, Any]
    others: Any
    shape: torch.Size
    stride: tuple[int, ...]


class Results(NamedTuple):
    """What a part of a program returns, or is given.

    Attributes:
        leaves: tensors are described; all else is as it is.
        structure: as torch's pytree has it.
    """

    leaves: tuple[Any, ...]
    structure: Any


def described(values: Any, number_of: NumberOf) -> Results:
    """What these values are like.

    Raises:
        CannotRepeat: there are tensors of another kind.
    """
    leaves, structure = pytree.tree_flatten(values)
    return Results(tuple(_described(leaf, number_of) for leaf in leaves), structure)


def _described(value: Any, number_of: NumberOf) -> Any:
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, DTensor):
        names, others = value.__tensor_flatten__()
        mesh = {name: getattr(value, name) for name in names if name != PART}
        part = _described(getattr(value, PART), number_of)
        return Distributed(part, mesh, others, value.shape, value.stride())
    if type(value) not in (FakeTensor, torch.nn.Parameter, Tensor):
        raise CannotRepeat(f"a tensor of the type {type(value).__name__}")
    return Leaf(
        number_of(value),
        int(value.storage_offset()),
        tuple(value.shape),
        value.stride(),
        value.dtype,
        fake.device_of(value),
        value.requires_grad,
        value.untyped_storage().nbytes(),
        mark_of(value),
    )


def leaves_of(results: Results) -> Iterator[Leaf]:
    """The tensors with memory among these results."""
    for one in results.leaves:
        if isinstance(one, Distributed):
            yield one.part
        elif isinstance(one, Leaf):
            yield one


def with_numbers(results: Results, number: Callable[[int], int]) -> Results:
    """The same results in other storages."""
    leaves = []
    for one in results.leaves:
        if isinstance(one, Distributed):
            one = one._replace(part=_with_number(one.part, number))
        elif isinstance(one, Leaf):
            one = _with_number(one, number)
        leaves.append(one)
    return Results(tuple(leaves), results.structure)


def _with_number(leaf: Leaf, number: Callable[[int], int]) -> Leaf:
    return leaf if leaf.number is None else leaf._replace(number=number(leaf.number))


def are_alike(some: Results, others: Results) -> bool:
    """Whether tensors are alike but for their places in memory, and all else is equal."""
    if some.structure != others.structure:
        return False
    return all(map(_are_alike, some.leaves, others.leaves))


def _are_alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Distributed):
        return one[1:] == other[1:] and _are_alike(one.part, other.part)
    if isinstance(one, Leaf):
        return one[2:] == other[2:]
    return one is other or bool(one == other)


def storages_of(
    results: Results, given: dict[int, list[Tensor]], first: int
) -> dict[int, torch.UntypedStorage]:
    """The storages of these results, by their numbers.

    They are new from number `first` on; before, they are those of given tensors.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    for leaf in leaves_of(results):
        number = leaf.number
        if number is None or number in storages:
            continue
        if number >= first:
            with torch._C._DisableTorchDispatch():
                empty = torch.empty(leaf.num_bytes, dtype=torch.uint8, device="meta")
                storages[number] = empty.untyped_storage()
        else:
            storages[number] = given[number][0].untyped_storage()
    return storages


def check(values: Any, results: Results, inputs: Results, first: int) -> None:
    """Refuse results that cannot be made again.

    Args:
        values: the results.
        results, inputs: what these are like, and what the part is given.
        first: the number of the first storage that the part has made.

    Raises:
        CannotRepeat: one has a value, or was there before.
    """
    given = {leaf.number for leaf in leaves_of(inputs)}
    for leaf in leaves_of(results):
        if leaf.number is None or leaf.mark is not None:
            raise CannotRepeat("a result that is not the device's")
        if leaf.number < first and leaf.number not in given:
            raise CannotRepeat("a result that the program had before")
    for tensor in parts_of(values):
        if getattr(tensor, "constant", None) is not None:
            raise CannotRepeat("a result with a value")


def made_like(results: Results, storages: dict[int, torch.UntypedStorage], mode: Any) -> Any:
    """Values that are like these results.

    Args:
        results: with the numbers of the storages.
        storages: by their numbers.
        mode: of the fake tensors.
    """
    leaves = []
    for one in results.leaves:
        if isinstance(one, Distributed):
            part = _made(one.part, storages, mode)
            parts = {PART: part, **one.mesh}
            one = DTensor.__tensor_unflatten__(parts, one.others, one.shape, one.stride)
        elif isinstance(one, Leaf):
            one = _made(one, storages, mode)
        leaves.append(one)
    return pytree.tree_unflatten(leaves, results.structure)


def _made(leaf: Leaf, storages: dict[int, torch.UntypedStorage], mode: Any) -> Tensor:
    assert leaf.number is not None
    with torch._C._DisableTorchDispatch():
        empty = torch.empty(0, dtype=leaf.dtype, device="meta")
        empty.set_(storages[leaf.number], leaf.offset, leaf.shape, leaf.stride)
    made = FakeTensor(mode, empty, leaf.device)
    made.requires_grad = leaf.requires_grad
    return made


def parts_of(values: Any) -> Iterator[Tensor]:
    """The tensors with memory among these values."""
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, Tensor):
            yield from fake.in_memory(leaf)
