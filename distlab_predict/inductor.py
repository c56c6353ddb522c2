"""What torch.compile's inductor makes of an operator: a part of a kernel, or a kernel of its own.

Called by compiled.py for each operator of a compiled program, in the process of a rank that is
recorded. The rules are those of torch 2.13's torch/_inductor/lowering.py and decomposition.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from distlab_predict import nodes
from distlab_predict import torch_fake as fake
from distlab_predict.dataflow import COLUMNS, FUSED, OPAQUE
from distlab_predict.fusion import MOST_READS
from distlab_predict.operators import PRODUCTS

# Operators with kernels of their own, which inductor does not write (make_fallback in lowering.py),
# or whose kernels scatter what they write, by how their names begin. Norms of batches and groups
# have two kernels, as in an eager program.
OWN_KERNELS = (
    "_ctc_loss",
    "_cudnn",
    "_embedding_bag",
    "_foreach_",
    "_fused_adam",
    "_fused_sgd",
    "_index_put_impl",
    "_native_batch_norm",
    "_scaled_dot_product",
    "_unique",
    "bincount",
    "cudnn_",
    "cum",
    "embedding_dense_backward",
    "grid_sampler",
    "histc",
    "index_add",
    "index_put",
    "kthvalue",
    "masked_select",
    "median",
    "mode",
    "multinomial",
    "native_batch_norm",
    "native_group_norm",
    "nonzero",
    "rand",
    "scatter",
    "searchsorted",
    "sort",
    "topk",
    "upsample",
)
REDUCTIONS = {
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "linalg_vector_norm",
    "logsumexp",
    "max",
    "mean",
    "min",
    "nansum",
    "nll_loss_forward",
    "norm",
    "prod",
    "std",
    "std_mean",
    "sum",
    "var",
    "var_mean",
}
# their small results are the statistics of each row
NORMS = {"native_layer_norm", "_fused_rms_norm"}
# their small results are sums over all rows, and they have one for each row inside
NORMS_BACKWARD = {"native_layer_norm_backward", "_fused_rms_norm_backward"}
# statistics of each row, which are no results of the operator, serve for its gradient
SOFTMAX = {"_softmax", "_log_softmax"}
# what they draw is not drawn again
RANDOM = {"bernoulli", "bernoulli_", "native_dropout", "normal_", "uniform_"}
# they read as much as they write
GATHERING = {"embedding", "gather", "index", "index_select", "take_along_dim"}
# they read none of what they overwrite
OVERWRITING = {"copy_", "fill_", "normal_", "uniform_", "zero_"}
# A reduction of so few numbers is written out, each of them read by the operator for its result
# (torch._inductor.config.unroll_reductions_threshold). If these are more than a kernel may read to
# compute a value again (MOST_READS), it is computed once.
UNROLLED = 8
STATISTIC = 4  # bytes of one, a float32


class Written(NamedTuple):
    """A tensor that an operator writes.

    Attributes:
        tensor: itself.
        is_reduced: as of `dataflow.Access`.
    """

    tensor: Tensor
    is_reduced: bool


class Part(NamedTuple):
    """What the compiler makes of an operator, or of a part of it.

    Attributes:
        role: as of `dataflow.Operation`.
        writes: its results.
        statistics: bytes of statistics that are results as well, after it was decomposed.
    """

    role: str
    writes: list[Written]
    statistics: int = 0


class Called(NamedTuple):
    """An operator that was called.

    Attributes:
        operator: of torch.ops.
        name: its name.
        kind: as of `nodes.Kernel`.
        args, kwargs: what it was called with.
        given: the tensors among its arguments.
        made: those that it has written.
    """

    operator: Any
    name: str
    kind: str
    args: tuple
    kwargs: dict[str, Any]
    given: Sequence[Tensor]
    made: Sequence[Tensor]


def parts_of(called: Called, by_hand: bool = False) -> list[Part]:
    """What the compiler makes of an operator.

    Args:
        by_hand: whether it is a person who fuses kernels.
    """
    name = called.name
    if _has_own_kernel(called, by_hand):
        return [Part(OPAQUE, [Written(tensor, False) for tensor in called.made])]
    if name in NORMS_BACKWARD:
        largest = max(map(Tensor.numel, called.made))
        rows = [Written(one, False) for one in called.made if one.numel() * UNROLLED > largest]
        sums = [Written(one, True) for one in called.made if one.numel() * UNROLLED <= largest]
        return [Part(FUSED, rows), Part(COLUMNS, sums)]
    if name in NORMS:
        most = called.given[0].numel()
        return [Part(FUSED, [Written(one, one.numel() < most) for one in called.made])]
    if name in SOFTMAX:
        result = called.made[0]
        statistics = STATISTIC * result.numel() // result.shape[called.args[1]]
        return [Part(FUSED, [Written(result, False)], statistics)]
    if name in REDUCTIONS:
        return [_reduction(called)]
    is_once = name in RANDOM
    return [Part(FUSED, [Written(tensor, is_once) for tensor in called.made])]


def is_by_rows(called: Called) -> bool:
    """Whether an operator is a product whose left matrix lies in memory row by row."""
    if called.name not in PRODUCTS:
        return False
    left = called.args[PRODUCTS[called.name]]
    return left.dim() == 2 and left.is_contiguous()


def read_by(called: Called) -> list[tuple[Tensor, int]]:
    """The tensors that an operator reads, with the bytes of each."""
    given = list(called.given)
    if called.name in OVERWRITING:
        given = given[1:]
    if called.name == "nll_loss_backward":  # of the scores it only has the shape
        given = [given[0], *given[2:]]
    reads = [(tensor, tensor.nbytes) for tensor in given]
    if called.name in GATHERING:
        reads[0] = (given[0], min(given[0].nbytes, called.made[0].nbytes))
    if called.name == "nll_loss_forward":
        scores, targets, *_ = given
        reads[0] = (scores, targets.numel() * scores.element_size())
    return reads


def _has_own_kernel(called: Called, by_hand: bool) -> bool:
    if called.operator.namespace not in ("aten", "prims") or called.kind != nodes.BYTES:
        return True
    if called.name.startswith(OWN_KERNELS) and called.name not in RANDOM:
        return True
    # inductor writes no kernels for complex numbers, and a person does, of rotary embeddings
    return not by_hand and any(tensor.is_complex() for tensor in (*called.given, *called.made))


def _reduction(called: Called) -> Part:
    """A reduction: over a few numbers, within each row, or over rows."""
    source = called.given[0]
    writes = [Written(tensor, True) for tensor in called.made]
    if called.made[0].numel() * UNROLLED >= source.numel():
        is_once = called.made[0].numel() * MOST_READS < source.numel()
        return Part(FUSED, [Written(tensor, is_once) for tensor in called.made])
    dims = _reduced_dims(called, source.dim())
    is_within_rows = source.dim() - 1 in dims and len(dims) < source.dim()
    return Part(FUSED if is_within_rows else COLUMNS, writes)


def _reduced_dims(called: Called, number: int) -> set[int]:
    """The dimensions that a reduction takes away."""
    place = fake.place_of(called.operator, "dim")
    dims: Any = None
    if 0 <= place < len(called.args):
        dims = called.args[place]
    if isinstance(dims, int):
        dims = [dims]
    if not isinstance(dims, Iterable):
        return set(range(number))
    return {dim % number for dim in dims} or set(range(number))
