"""The names of what the probe tries, and of what may come of it. Runs anywhere; imports nothing."""

from __future__ import annotations

from typing import NamedTuple

POINT_TO_POINT = (
    "send, recv",
    "isend, irecv",
    "recv from any source",
    "send, recv with tags",
    "batch_isend_irecv",
    "send_object_list",
)
COLLECTIVES = (
    "broadcast",
    "reduce",
    "all_reduce",
    "all_reduce async_op",
    "all_reduce sparse",
    "all_reduce_coalesced",
    "gather",
    "all_gather",
    "all_gather uneven",
    "all_gather_single",
    "all_gather_coalesced",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_single uneven",
    "barrier",
    "monitored_barrier",
    "broadcast_object_list",
    "gather_object",
    "all_gather_object",
    "scatter_object_list",
    "new_group",
    "split_group",
)
FUNCTIONS = (*POINT_TO_POINT, *COLLECTIVES)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
BACKENDS = ("gloo", "nccl", "mpi", "ucc")
DEVICES = ("cpu", "cuda")
# what may come of a case, and how it stands in a cell
KINDS = {
    "works": "yes",
    "refused": "no",
    "wrong result": "WRONG",
    "hangs": "HANGS",
    "ends the process": "DIES",
    "not built": "-",
    "no device": "-",
    "not tried": "-",
    "depends": "?",  # in tables of older versions: on how it was built
}


class Column(NamedTuple):
    """A backend, and the device of the tensors that it is given: "cpu" or "cuda"."""

    backend: str
    device: str

    @property
    def title(self) -> str:
        return f"{self.backend} {'GPU' if self.device == 'cuda' else self.device.upper()}"


class Outcome(NamedTuple):
    """What came of a case: one of `KINDS`, and torch's message where there was one."""

    kind: str
    message: str = ""


def reduction(op: str, dtype: str) -> str:
    """Name of the case of all_reduce with that op and dtype."""
    return f"{op} {dtype}"


REDUCTIONS = tuple(reduction(op, dtype) for op in OPS for dtype in DTYPES)
