"""What kind of work an operator is: its FLOPs, the shape of its matrices, and their number format.

Called by recorder.py for each operator, in the process of a rank that is recorded. Shapes are as
`nodes.Kernel` has them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from distlab.compat import torch as private
from distlab_predict import nodes
from distlab_predict.torch_fake import COURSE, operator_name, place_of

# libraries of torch's own operators, whose FLOPs torch counts if they have any that matter, and
# that of the course, whose products are all below
COUNTED = {"aten", "fsdp", "prims", COURSE}
# those of them whose FLOPs matter and that torch does not count, by how their names begin; of a
# Fourier transform they do not: 5 n log2(n) of 16 n bytes, which bind it on each device in DEVICES
UNCOUNTED = (
    "_cslt_sparse_mm",
    "_cudnn_rnn",  # its time is that of one small product after the other
    "_foreach_mm",
    "_linalg_",
    "_sparse_semi_structured_",
    "_weight_int",
    "cholesky",
    "linalg_",
    "lu_unpack",
    "mkldnn_rnn_layer",  # as _cudnn_rnn
    "ormqr",
    "triangular_solve",
)
# those of them that bytes bind for all that: a norm reads each number once, and a check a flag
READ_ONCE = {"_linalg_check_errors", "linalg_cross", "linalg_vector_norm"}
# products of matrices, with the place of the first of the two among the arguments
PRODUCTS = {
    "mm": 0,
    "bmm": 0,
    "addmm": 1,
    "addmm_": 1,
    "baddbmm": 1,
    "baddbmm_": 1,
    "addbmm": 1,
    "addbmm_": 1,
    "_addmm_activation": 1,
    "_scaled_mm": 0,
    "_scaled_mm_v2": 0,
    "_int_mm": 0,
    "scaled_mm_add_": 1,
}
GROUPED = {  # likewise
    "_grouped_mm": 0,
    "_scaled_grouped_mm": 0,
    "_scaled_grouped_mm_v2": 0,
    "grouped_mm_add_": 1,
    "scaled_grouped_mm_add_": 1,
}
CONVOLUTIONS = ("convolution", "cudnn_convolution", "_convolution", "mkldnn_convolution")
# of attention: whether heads are the dimension after the batch, or the one after the places
ATTENTION = {
    "_scaled_dot_product_flash_attention": True,
    "_scaled_dot_product_efficient_attention": True,
    "_scaled_dot_product_cudnn_attention": True,
    "_scaled_dot_product_flash_attention_for_cpu": True,
    "_scaled_dot_product_fused_attention_overrideable": True,
    "_cudnn_attention_forward": True,
    "_flash_attention_forward": False,
    "_efficient_attention_forward": False,
}
CAUSAL_MASKS = {1, 2}  # of _efficient_attention_forward: from the upper left corner, or the lower

Shape = tuple[int, ...]
Describe = Callable[[tuple, dict[str, Any]], tuple[str, Shape]]


class Work(NamedTuple):
    """What a kernel computes; the fields are those of `nodes.Kernel`."""

    flops: int
    kind: str
    shape: Shape
    dtype: str


def work_of(
    operator: Any, args: tuple, kwargs: dict[str, Any], value: Any, given: Sequence[Tensor]
) -> Work:
    """What an operator computes.

    Args:
        operator: of torch.ops.
        args, kwargs: what it was called with.
        value: what it has returned.
        given: the tensors among its arguments.
    """
    counted = private.flops_of(operator, value, args, kwargs)
    describe = _describe_of(operator)
    if describe is None:
        kind = _kind_of_others(operator, counted)
        return Work(counted or 0, kind, (), _most_read(given))
    kind, shape = describe(args, kwargs)
    if counted is None:
        counted = flops_of_shape(kind, shape, _is_backward(operator))
    return Work(counted, kind, shape, dtype_name(_first_matrix(operator, args)))


def flops_of_shape(kind: str, shape: Shape, is_backward: bool = False) -> int:
    """The FLOPs of matrices with this shape, as torch counts those that it knows.

    Args:
        kind: "product", "grouped" or "attention".
        shape: as of `nodes.Kernel`.
        is_backward: whether of attention it is the backward pass.
    """
    if kind == nodes.ATTENTION:
        batch, heads, _, queries, keys, numbers, _ = shape
        products = 5 if is_backward else 2  # backward, the scores are computed again
        return products * 2 * batch * heads * queries * keys * numbers
    batch, m, n, k = shape
    if kind == nodes.GROUPED:
        return 2 * m * n * k
    return 2 * batch * m * n * k


def dtype_name(tensor: Tensor) -> str:
    """The number format of a tensor, as "bfloat16"."""
    return _names_of_formats(tensor.dtype)


@functools.cache
def _names_of_formats(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _most_read(given: Sequence[Tensor]) -> str:
    """The number format of the largest of these tensors; "" if there is none."""
    largest = max(given, key=Tensor.numel, default=None)
    if largest is None:
        return ""
    return dtype_name(largest)


# --- which operators are what ---


@functools.cache
def _describe_of(operator: Any) -> Describe | None:
    """The function that says the kind and the shape of an operator's work; None if it has none."""
    if operator.namespace not in ("aten", COURSE):
        return None
    name = operator_name(operator)
    if name in PRODUCTS:
        return functools.partial(_product, PRODUCTS[name])
    if name == "linear":
        return _linear
    if name in GROUPED:
        return functools.partial(_grouped, GROUPED[name])
    forward = name.replace("_backward", "_forward")
    for own in (name, forward, name.removesuffix("_backward")):
        if own in ATTENTION:
            return _attention_of(operator, ATTENTION[own])
    return None


def _kind_of_others(operator: Any, counted: int | None) -> str:
    """The kind of an operator without a shape of its own."""
    name = operator_name(operator)
    if name.removesuffix("_backward") in CONVOLUTIONS:
        return nodes.CONVOLUTION
    if counted is not None:
        return ""
    if operator.namespace not in COUNTED:
        return nodes.UNKNOWN
    if name.startswith(UNCOUNTED) and name not in READ_ONCE:
        return nodes.UNKNOWN
    return nodes.BYTES


@functools.cache
def _is_backward(operator: Any) -> bool:
    return operator_name(operator).endswith("_backward")


def _first_matrix(operator: Any, args: tuple) -> Tensor:
    """The first of the matrices that an operator multiplies."""
    name = operator_name(operator)
    if _is_backward(operator):
        return args[place_of(operator, "query")]
    return args[PRODUCTS.get(name) or GROUPED.get(name, 0)]


# --- shapes ---


def _product(place: int, args: tuple, _: dict[str, Any]) -> tuple[str, Shape]:
    *batch, m, k = args[place].shape
    n = args[place + 1].shape[-1]
    return nodes.PRODUCT, (*(batch or (1,)), m, n, k)


def _linear(args: tuple, _: dict[str, Any]) -> tuple[str, Shape]:
    values, weights, *_others = args
    n, k = weights.shape
    return nodes.PRODUCT, (1, values.numel() // k, n, k)


def _grouped(place: int, args: tuple, kwargs: dict[str, Any]) -> tuple[str, Shape]:
    """Of groups whose rows lie together, or whose columns do, or what they add up over does."""
    first, second = args[place], args[place + 1]
    k = first.shape[-1]
    n = second.shape[-1]
    if first.dim() == 3 and second.dim() == 3:
        groups, m, _ = first.shape
        return nodes.GROUPED, (groups, groups * m, n, k)
    if second.dim() == 3:
        return nodes.GROUPED, (second.shape[0], first.shape[0], n, k)
    if first.dim() == 3:  # the other way round: the columns of the second are the rows
        groups, m, _ = first.shape
        return nodes.GROUPED, (groups, n, m, k)
    # each group adds up over a part of k, as for the gradients of the groups' weights
    groups = _offsets(args, kwargs).numel()
    return nodes.GROUPED, (groups, groups * first.shape[0], n, k // groups)


def _offsets(args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """Where groups end: the one argument that is a vector of whole numbers."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.dim() == 1 and not value.is_floating_point():
            return value
    raise ValueError("a grouped product of two matrices needs the offsets of its groups")


def _attention_of(operator: Any, heads_first: bool) -> Describe:
    """The function that says the shape of this kind of attention."""
    query = place_of(operator, "query")
    causal = place_of(operator, "is_causal")
    mask = place_of(operator, "custom_mask_type")

    def describe(args: tuple, _: dict[str, Any]) -> tuple[str, Shape]:
        of_queries, of_keys = args[query].shape, args[query + 1].shape
        if len(of_queries) == 3:  # sequences of several lengths, one after another
            of_queries, of_keys = (1, *of_queries), (1, *of_keys)
        if heads_first:
            batch, heads, queries, numbers = of_queries
            _, key_heads, keys, _ = of_keys
        else:
            batch, queries, heads, numbers = of_queries
            _, keys, key_heads, _ = of_keys
        is_causal = 0 <= causal < len(args) and bool(args[causal])
        if 0 <= mask < len(args):
            is_causal = args[mask] in CAUSAL_MASKS
        return nodes.ATTENTION, (batch, heads, key_heads, queries, keys, numbers, int(is_causal))

    return describe
