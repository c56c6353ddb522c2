"""What an operator does, which is the same each time for arguments that are alike.

Called by recorder.py, in the process of a rank that is recorded.
"""

from typing import Any, NamedTuple

from torch import Tensor

from distlab_predict.operators import Work, work_of
from distlab_predict.torch_fake import counts_mask, operator_name, traffic
from distlab_predict.torch_symmetric import is_pipeline

# roles of operators
KERNEL = "kernel"
VIEW = "view"  # it writes nothing
COLLECTIVE = "collective"  # a functional one, or the wait for one
PIPELINE = "pipeline"  # a collective with its products, see torch_symmetric.py
SILENT = "silent"  # the processor does nothing that counts, either

# operators that write nothing, beside views
FREE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "_local_scalar_dense",
}
# operators whose result has as many elements as the data says, so that the program waits for it
COUNTING = {
    "_unique2",
    "bincount",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}  # likewise, with a mask
# libraries of torch's own operators
ROLES = {
    "profiler": SILENT,
    "c10d": SILENT,
    "_c10d_functional": COLLECTIVE,
    "_dtensor": COLLECTIVE,
}


class Effect(NamedTuple):
    """What an operator does.

    Attributes:
        name: the operator's.
        role: one of those above.
        work: of its kernel; None without one.
        num_bytes: that this reads and writes.
        counts: whether the program waits for it, because its result has as many elements as the
            data says.
    """

    name: str
    role: str
    work: Work | None = None
    num_bytes: int = 0
    counts: bool = False


def effect_of(
    operator: Any,
    args: tuple,
    kwargs: dict[str, Any],
    value: Any,
    given: list[Tensor],
    made: list[Tensor],
) -> Effect:
    """What an operator does.

    Args:
        operator: of torch.ops.
        args, kwargs: what it was called with.
        value: what it has returned.
        given, made: the tensors among its arguments, and in what it has returned.
    """
    name = operator_name(operator)
    role = ROLES.get(operator.namespace)
    if role is not None:
        return Effect(name, role)
    if is_pipeline(operator, args, kwargs):
        return Effect(name, PIPELINE)
    if operator.is_view or name in FREE:
        return Effect(name, VIEW)
    work = work_of(operator, args, kwargs, value, given)
    num_bytes = traffic(operator, args, given, made)
    counts = name in COUNTING or (name in INDEXING and counts_mask(args))
    return Effect(name, KERNEL, work, num_bytes, counts)
