"""Small tensors whose values need no data keep them: grids of ranks, samplers, indices of batches.

Called by torch_fake.py, for each operator of a rank that is recorded. torch's fake tensors have a
`constant` for numbers; here it serves for more of them. Tried with torch 2.13.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from distlab_predict import torch_routing
from distlab_predict.torch_fake import COURSE
from distlab_predict.torch_lists import makes_nothing_new

MOST_KNOWN = 1 << 17  # elements of a tensor whose values are kept
MOST_FRACTIONS = 1 << 10  # likewise, of one with fractions
# operators that make a tensor of nothing but numbers, or of random ones
MADE_OF_NUMBERS = {"arange", "eye", "full", "ones", "randint", "randperm", "zeros"}
DRAWN = "random_"  # the operator that draws a whole number, such as a seed, into a tensor
COMPUTING = {"aten", "prims", COURSE}  # libraries of operators whose values can be computed here
SILENT = {"prim", "profiler"}  # those of operators that write nothing
# what raises where a result depends on values
NEEDS_VALUES = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
)

Run = Callable[[], Any]  # an operator, on tensors without data


def keep_values() -> None:
    """Have torch keep the values of small tensors, and not only of single numbers."""
    setattr(fake_tensor, "CONSTANT_NUMEL_LIMIT", MOST_KNOWN)  # noqa: B010 - torch calls it final
    setattr(FakeTensor, "mark", None)  # noqa: B010 - of routing.py; torch's class has none


def keep_values_of_real(mode: FakeTensorMode) -> None:
    """Have real tensors keep their values too, such as the words of a batch and their mask."""
    convert = mode.fake_tensor_converter.from_real_tensor

    def from_real_tensor(
        mode: FakeTensorMode, tensor: torch.Tensor, make_constant: bool = False, **options: Any
    ) -> FakeTensor:
        is_known = make_constant or _is_of_small_whole_numbers(tensor)
        return convert(mode, tensor, make_constant=is_known, **options)

    setattr(mode.fake_tensor_converter, "from_real_tensor", from_real_tensor)  # noqa: B010


def _is_of_small_whole_numbers(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values that are worth keeping; bytes may be a part of a file."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.uint8:
        return False
    if tensor.numel() > MOST_KNOWN:
        return False
    return tensor.device.type == "cpu" and tensor.layout is torch.strided


def before_reading(note: Callable[[FakeTensor], None]) -> None:
    """Have this called with each tensor whose values a program takes without an operator."""
    for name in ("numpy", "tolist"):
        setattr(FakeTensor, name, _noted(getattr(FakeTensor, name), note))


def _noted(read: Callable[..., Any], note: Callable[[FakeTensor], None]) -> Callable[..., Any]:
    def call(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.constant is not None:
            note(tensor)
        return read(tensor, *args, **kwargs)

    return call


def with_values(
    mode: FakeTensorMode,
    operator: Any,
    args: Any,
    kwargs: Any,
    given: Sequence[FakeTensor],
    run: Run,
) -> Any:
    """What an operator makes, with values where they are known.

    Args:
        mode: of the fake tensors.
        operator: of torch.ops.
        args: what it is called with.
        kwargs: likewise.
        given: the fake tensors among them.
        run: calls it.
    """
    if operator.namespace in SILENT:
        return run()
    if operator.namespace not in COMPUTING:
        return _of_a_collective(operator, given, run)
    made = torch_routing.decides(mode, operator, args, kwargs)
    if made is None:
        made = _computed(mode, operator, args, kwargs, given, run)
    torch_routing.follow(operator, args, kwargs, given, made)
    return made


def _of_a_collective(operator: Any, given: Sequence[FakeTensor], run: Run) -> Any:
    """What a collective makes: it has no values, as other ranks have sent it."""
    if operator._schema.is_mutable:
        forget(given)
    return _without_values([tensor for tensor in given if tensor.constant is not None], run)


def _computed(
    mode: FakeTensorMode,
    operator: Any,
    args: Any,
    kwargs: Any,
    given: Sequence[FakeTensor],
    run: Run,
) -> Any:
    """What an operator of torch's own makes, with values if all of its arguments have them."""
    if not given:
        return _without_nan(_made_of_numbers(mode, operator, args, kwargs, run()))
    known = [tensor for tensor in given if tensor.constant is not None]
    if not known:
        return None if makes_nothing_new(operator, args) else run()
    if operator._overloadpacket.__name__ == DRAWN:
        with no_dispatch():
            operator(args[0].constant, *args[1:], **kwargs)
        return args[0]
    if len(known) == len(given) and _is_too_large(operator, known, run):
        return _without_values(known, run)
    return _without_nan(run())


def add_up(written: Any, operation: Any, size: int) -> None:
    """Have tensors be what an all-reduce makes of them if all ranks have the same values.

    The rank that is recorded stands for the others. Where a value is not known, or an operation is
    none of those below, there are no values afterwards.

    Args:
        written: the tensors, in lists.
        operation: a ReduceOp.
        size: how many ranks there are.
    """
    ops = dist.ReduceOp
    for tensor in written:
        if not isinstance(tensor, FakeTensor) or tensor.constant is None:
            continue
        if operation == ops.SUM:
            with no_dispatch():
                tensor.constant.mul_(size)
        elif not any(operation == other for other in (ops.MAX, ops.MIN, ops.AVG)):
            forget(tensor)


def _without_nan(made: Any) -> Any:
    """The same tensor, without values if one is a number without, see no_data.py, or if many are.

    Of many with fractions, such as the angles of places, no program decides anything.
    """
    if not isinstance(made, FakeTensor) or made.constant is None:
        return made
    if made.numel() > MOST_FRACTIONS and (made.is_floating_point() or made.is_complex()):
        made.constant = None
    elif made.is_floating_point():
        with no_dispatch():
            is_known = not made.constant.isnan().any()
        if not is_known:
            forget(made)
    return made


def filled(tensor: FakeTensor, value: bool) -> FakeTensor:
    """A tensor of truths with this value everywhere; without values if it is a large one."""
    if tensor.numel() > MOST_KNOWN:
        return tensor
    with no_dispatch():
        values = torch.full(tensor.shape, value)
    mode = tensor.fake_mode
    return mode.fake_tensor_converter.from_real_tensor(mode, values, make_constant=True)


def forget(written: Any) -> None:
    """Have tensors, and those that share their storages, no values any more: something writes them.

    Args:
        written: a tensor, or tensors in lists.
    """
    if isinstance(written, (list, tuple)):
        for one in written:
            forget(one)
    elif isinstance(written, FakeTensor) and written.constant is not None:
        written.fake_mode.fake_tensor_converter.invalidate_constant_aliases(written.constant)


def _made_of_numbers(mode: FakeTensorMode, operator: Any, args: Any, kwargs: Any, made: Any) -> Any:
    """The same tensor with its values, if it is small and of whole numbers or truths.

    Of other numbers only a single one, such as a flag that ranks add up.
    """
    if not isinstance(made, FakeTensor) or made.constant is not None:
        return made
    name = operator._overloadpacket.__name__
    is_to_be_drawn = name == "empty" and made.numel() == 1 and not made.is_floating_point()
    if (name not in MADE_OF_NUMBERS and not is_to_be_drawn) or made.device.type != "cpu":
        return made
    if made.numel() > MOST_KNOWN:
        return made
    if made.numel() > 1 and (made.is_floating_point() or made.is_complex()):
        return made
    with no_dispatch():
        values = operator(*args, **kwargs)
    return mode.fake_tensor_converter.from_real_tensor(mode, values, make_constant=True)


def _is_too_large(operator: Any, known: Sequence[FakeTensor], run: Run) -> bool:
    """Whether an operator on values that are known would make too many: a mask of long texts."""
    if operator.is_view or operator._schema.is_mutable:
        return False
    if all(tensor.numel() <= 1 for tensor in known):
        return False
    try:
        made = _without_values(known, run)
    except NEEDS_VALUES:
        return False  # as nonzero, which makes no more than it is given
    tensors = made if isinstance(made, (list, tuple)) else [made]
    return any(isinstance(one, torch.Tensor) and one.numel() > MOST_KNOWN for one in tensors)


def _without_values(known: Sequence[FakeTensor], run: Run) -> Any:
    """What an operator makes if the values of its arguments are not known."""
    values = [tensor.constant for tensor in known]
    for tensor in known:
        tensor.constant = None
    try:
        return run()
    finally:
        for tensor, value in zip(known, values, strict=True):
            tensor.constant = value
