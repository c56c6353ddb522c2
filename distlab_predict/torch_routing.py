"""What operators choose and count has marks, and values if loads of experts are assumed.

Called by torch_known.py, for each operator of a rank that is recorded. What `topk` or `argmax` have
chosen is marked. A histogram of marked numbers then has values, which torch_known carries on to
what a program makes of them: the splits of an all-to-all, the rows of a group, the lengths of
slices. Tried with torch 2.13.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from distlab_predict.routed_parts import OF_PARTS, choice_of, scattered
from distlab_predict.routing import (
    MOST_ASSUMED,
    Choice,
    Counts,
    Mask,
    balanced,
    counts_of,
    empty,
    known,
    mark_of,
    put_mark,
    routing_of,
    tensors_in,
)

CHOOSING = {"topk", "argmax", "max", "multinomial"}
# operators whose result has the elements of their first argument, or some of them, in any order
KEEPING = {
    "_to_copy",
    "_unsafe_view",
    "alias",
    "cat",
    "chunk",
    "clone",
    "contiguous",
    "detach",
    "expand",
    "flatten",
    "index",
    "index_select",
    "lift_fresh",
    "permute",
    "reshape",
    "select",
    "slice",
    "sort",
    "split",
    "split_with_sizes",
    "squeeze",
    "stack",
    "t",
    "transpose",
    "unbind",
    "unsqueeze",
    "view",
}


def decides(mode: FakeTensorMode, operator: Any, args: Any, kwargs: Any) -> Any:
    """What an operator makes of marked tensors, if its shape or values follow from marks alone.

    Args:
        mode: of the fake tensors.
        operator: of torch.ops.
        args, kwargs: what it is called with.

    Returns:
        the result; None if the operator is to run as any other.
    """
    name = operator._overloadpacket.__name__
    if name not in DECIDED or not args:
        return None
    return DECIDED[name](mode, args, kwargs)


def _histc(mode: FakeTensorMode, args: Any, kwargs: Any) -> FakeTensor | None:
    """Count whole numbers, which torch cannot on a CPU."""
    given = args[0]
    if given.is_floating_point():
        return None
    bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
    if isinstance(mark_of(given), Choice):
        return counts_of(mode, given.numel(), (bins,), given.dtype)
    return empty(mode, (bins,), given.dtype)


def _bincount(mode: FakeTensorMode, args: Any, kwargs: Any) -> FakeTensor | None:
    mark = mark_of(args[0])
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    if not isinstance(mark, Choice) or weights is not None:
        return None
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    if least <= mark.options:
        return counts_of(mode, args[0].numel(), (mark.options,), torch.int64)
    with no_dispatch():
        counts = torch.zeros(least, dtype=torch.int64)
        counts[: mark.options] = balanced(args[0].numel(), (mark.options,))
    return known(mode, counts)


def _sum(mode: FakeTensorMode, args: Any, kwargs: Any) -> FakeTensor | None:
    """Count the ones of a mask."""
    mask = args[0]
    mark = mark_of(mask)
    if not isinstance(mark, Mask):
        return None
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(dims, int):
        dims = [dims]
    gone = {dim % mask.dim() for dim in dims or range(mask.dim())}
    keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    shape = []
    for dim, length in enumerate(mask.shape):
        if dim not in gone:
            shape.append(length)
        elif keepdim:
            shape.append(1)
    whole = torch.int64 if not mask.is_floating_point() else mask.dtype
    dtype = kwargs.get("dtype") or whole
    return counts_of(mode, round(mark.share * mask.numel()), tuple(shape), dtype)


def _nonzero(mode: FakeTensorMode, args: Any, _: Any) -> FakeTensor | None:
    mask = args[0]
    mark = mark_of(mask)
    if not isinstance(mark, Mask):
        return None
    routing_of(mask).used = True
    return empty(mode, (round(mark.share * mask.numel()), mask.dim()), torch.int64)


def _index(mode: FakeTensorMode, args: Any, _: Any) -> FakeTensor | None:
    """Take the rows for which a mask is true."""
    given, indices = args
    place = 0
    for place, mask in enumerate(indices):  # noqa: B007 - the loop's end is used
        if mask is not None:
            break
    mark = mark_of(mask)
    others = [index for index in indices if index is not None and index is not mask]
    if not isinstance(mark, Mask) or mask.dtype != torch.bool or others:
        return None
    routing_of(mask).used = True
    rows = round(mark.share * mask.numel())
    shape = (*given.shape[:place], rows, *given.shape[place + mask.dim() :])
    return empty(mode, shape, given.dtype)


def _masked_select(mode: FakeTensorMode, args: Any, _: Any) -> FakeTensor | None:
    given, mask = args
    mark = mark_of(mask)
    if not isinstance(mark, Mask):
        return None
    routing_of(mask).used = True
    return empty(mode, (round(mark.share * mask.numel()),), given.dtype)


def _repeat_interleave(mode: FakeTensorMode, args: Any, kwargs: Any) -> FakeTensor | None:
    """Say which expert each row is for: of many rows, nobody needs it."""
    repeats = args[0]
    length = kwargs.get("output_size")
    if length is None or length <= MOST_ASSUMED or not isinstance(mark_of(repeats), Counts):
        return None
    return empty(mode, (length,), torch.int64)


DECIDED: dict[str, Callable[[FakeTensorMode, Any, Any], FakeTensor | None]] = {
    "histc": _histc,
    "bincount": _bincount,
    "sum": _sum,
    "count_nonzero": _sum,
    "nonzero": _nonzero,
    "index": _index,
    "masked_select": _masked_select,
    "repeat_interleave": _repeat_interleave,
}


def follow(operator: Any, args: Any, kwargs: Any, given: Sequence[FakeTensor], made: Any) -> None:
    """Mark what an operator has made of marked tensors, and what it has chosen.

    Args:
        args, kwargs: what it was called with.
        given: the fake tensors among its arguments.
        made: its result.
    """
    name = operator._overloadpacket.__name__
    if name in CHOOSING:
        _mark_chosen(name, args, made)
        return
    marks = [mark for mark in map(mark_of, given) if mark is not None]
    if not marks:
        return
    counts = [mark for mark in marks if isinstance(mark, Counts)]
    if counts:
        _mark_counts(made, any(mark.skewed for mark in counts))
    elif name.startswith("scatter") or name in ("eq", "ne"):
        _mark_mask(name, args, made)
    elif name in OF_PARTS:
        put_mark(made, OF_PARTS[name](args, kwargs))
    elif name in KEEPING and mark_of(_first(args)) is not None:
        for tensor in tensors_in(made):
            put_mark(tensor, mark_of(_first(args)))
    elif operator._schema.is_mutable and isinstance(args[0], FakeTensor):
        put_mark(args[0], None)


def _mark_chosen(name: str, args: Any, made: Any) -> None:
    """Mark the places that an operator has found along a dimension."""
    given = args[0]
    places = list(tensors_in(made))[-1:]
    dim = args[2] if name == "topk" and len(args) > 2 else -1
    if name in ("argmax", "max"):
        if len(args) < 2 or not isinstance(args[1], int):
            return  # of all elements
        dim = args[1]
    for tensor in places:
        if given.dim() and not tensor.is_floating_point():
            is_of_rows = dim % given.dim() == given.dim() - 1 and name != "multinomial"
            put_mark(tensor, choice_of(given, tensor) if is_of_rows else Choice(given.shape[dim]))


def _mark_counts(made: Any, skewed: bool) -> None:
    """Mark what has values because other values were assumed, and let large ones go."""
    for tensor in tensors_in(made):
        if tensor.constant is None:
            continue
        if tensor.numel() > MOST_ASSUMED:
            tensor.constant = None
        else:
            put_mark(tensor, Counts(skewed))


def _mark_mask(name: str, args: Any, made: Any) -> None:
    """Mark ones in the places of choices, and where choices are equal to a number."""
    if name in ("eq", "ne"):
        first, second = args[:2]
        choice = mark_of(first) or mark_of(second)
        chosen, other = (first, second) if mark_of(first) is choice else (second, first)
        if not isinstance(choice, Choice) or _are_labels(chosen, other, made):
            return
        if _is_one_of_each(other):
            share = 1 / choice.options
            put_mark(made, Mask(share if name == "eq" else 1 - share))
        return
    put_mark(made, scattered(args, made))


def _is_one_of_each(other: Any) -> bool:
    """Whether it is a number, or different ones, as numbers of experts are."""
    if not isinstance(other, Tensor):
        return True
    values = other.constant if isinstance(other, FakeTensor) else other
    if values is None:
        return False
    with no_dispatch():
        return len(values.unique()) == values.numel()


def _are_labels(chosen: Tensor, others: Any, made: Tensor) -> bool:
    """Whether each choice has a number of its own that is right, as where an accuracy is counted.

    A number of an expert is compared with all choices.
    """
    if not isinstance(others, Tensor) or made.shape != chosen.shape:
        return False
    return others.numel() > 1 or chosen.numel() == 1


def _first(args: Any) -> Any:
    """The first argument, or the first of the tensors that it lists."""
    first = args[0]
    return first[0] if isinstance(first, (list, tuple)) and first else first
