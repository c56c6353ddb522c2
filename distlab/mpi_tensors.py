"""Tensors as MPI sees them: their memory, what MPI computes with them, and what it must be refused.

Runs on every rank, called by mpi_backend.py; torch and mpi4py only. What moves without being computed with travels as
bytes, so every dtype does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from mpi4py import MPI

NAME = "mpi4py"
# dtypes that MPI computes with; the two halves are reduced as float32, which is also closer to the exact sum
MPI_TYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int8: MPI.INT8_T,
    torch.uint8: MPI.UINT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.bool: MPI.C_BOOL,
    torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX,
}
WIDENED = (torch.float16, torch.bfloat16)
MPI_OPS = {
    "SUM": MPI.SUM,
    "AVG": MPI.SUM,
    "PRODUCT": MPI.PROD,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}
BOOL_OPS = {  # of True and False; a sum is True where anything is
    "SUM": MPI.LOR,
    "PRODUCT": MPI.LAND,
    "MIN": MPI.LAND,
    "MAX": MPI.LOR,
    "BAND": MPI.LAND,
    "BOR": MPI.LOR,
    "BXOR": MPI.LXOR,
}


def raw(tensor: torch.Tensor) -> list[Any]:
    """A contiguous tensor's memory as bytes."""
    return [MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes), MPI.BYTE]


def numbers(tensor: torch.Tensor) -> list[Any]:
    """A contiguous tensor's memory as numbers that MPI can compute with."""
    return [MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes), tensor.numel(), MPI_TYPES[tensor.dtype]]


def row_bytes(tensor: torch.Tensor) -> int:
    """Bytes of one step along the first dimension."""
    return tensor.element_size() * tensor[0].numel() if tensor.dim() and tensor.shape[0] else 0


def computable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where MPI can compute with it, else a copy where it can."""
    if tensor.dtype in WIDENED:
        return tensor.detach().float().contiguous()
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def give(tensor: torch.Tensor, buffer: torch.Tensor, divisor: int = 1) -> None:
    """Put a result into the tensor that it is for, if it is not there already."""
    if divisor != 1:
        buffer.detach().div_(divisor)
    if buffer is not tensor and buffer.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(buffer.view(tensor.shape))


def give_shares(tensors: list[torch.Tensor], flat: torch.Tensor) -> None:
    """Put the pieces of a flat result into the tensors that they are for."""
    for tensor, share in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        give(tensor, share)


def movable(what: str, tensors: Iterable[torch.Tensor], contiguous: bool = False) -> list[torch.Tensor]:
    """Dense tensors of one dtype in the memory of this process, whose bytes can be sent."""
    tensors = list(tensors)
    if not tensors:
        refuse(f"{what} needs a tensor, got an empty list.")
    dtype = tensors[0].dtype
    for tensor in tensors:
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            kind = f"{tensor.device.type} tensor" if tensor.layout == torch.strided else f"{tensor.layout} tensor"
            refuse(f"{what} on {NAME} needs dense CPU tensors, got a {kind}. Call tensor.cpu() or tensor.to_dense().")
        if contiguous and not tensor.is_contiguous():
            refuse(f"{what} needs a contiguous tensor, got strides {tensor.stride()}. Call tensor.contiguous().")
        if tensor.dtype is not dtype:
            refuse(f"{what} needs tensors of one dtype, got {', '.join(str(tensor.dtype) for tensor in tensors)}.")
    return tensors


def check_count(what: str, tensors: Sequence[Any], size: int) -> None:
    """As many tensors, or lists of them, as there are ranks."""
    if len(tensors) != size:
        refuse(f"{what} needs a list of {size} tensors, one a rank of the group, got {len(tensors)}.")


def check_list(what: str, tensors: list[torch.Tensor], one: torch.Tensor, size: int) -> None:
    """As many tensors as there are ranks, each of the shape of `one`."""
    check_count(what, tensors, size)
    movable(what, [*tensors, one])
    for index, tensor in enumerate(tensors):
        if tensor.shape != one.shape:
            shapes = f"{list(tensor.shape)}, expected {list(one.shape)}"
            refuse(f"{what} needs tensors of one shape, got at index {index} {shapes}.")


def check_shares(what: str, whole: torch.Tensor, share: torch.Tensor, size: int) -> None:
    """A tensor that has a share for each rank."""
    movable(what, [whole, share])
    if whole.numel() != size * share.numel():
        refuse(f"{what} needs a tensor of {size} times {share.numel()} elements, got {whole.numel()}.")


def check_tag(tag: int) -> int:
    """A tag that MPI can tell from others."""
    most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    if not 0 <= tag <= most:
        refuse(f"tag must be from 0 to {most} on {NAME}, got {tag}.")
    return tag


def bytes_by_rank(tensor: torch.Tensor, splits: list[int], size: int) -> list[int]:
    """Bytes of a tensor for each rank, of rows for each rank; without splits all have as many."""
    if not tensor.dim():
        refuse("all_to_all_single needs tensors with a first dimension to share, got a scalar. Call tensor.reshape(1).")
    rows = tensor.shape[0]
    if not splits and rows % size:
        refuse(f"all_to_all_single without splits needs rows that {size} ranks can share, got {rows}.")
    splits = list(splits) or [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        refuse(f"all_to_all_single needs {size} splits that add up to {rows} rows, got {splits}.")
    return [rows * row_bytes(tensor) for rows in splits]


def refuse(why: str) -> NoReturn:
    """As torch's own backends do for what they cannot do: no argument error, because ranks may differ in it."""
    raise RuntimeError(why)


def operation(what: str, opts: Any, tensors: list[torch.Tensor], size: int) -> tuple[MPI.Op, int]:
    """MPI's operation for torch's, and by what its result must be divided: the size of the group for an average, or 1.

    Raises:
        RuntimeError: the tensors' dtype does not go with it.
    """
    op, is_average = _operation(what, dist.ReduceOp.SUM if opts is None else opts.reduceOp.op, tensors[0].dtype)
    return op, size if is_average else 1


@functools.cache
def _operation(what: str, op: dist.ReduceOp.RedOpType, dtype: torch.dtype) -> tuple[MPI.Op, bool]:
    name = op.name
    if name not in MPI_OPS:
        refuse(f"{what} cannot use ReduceOp.{name} with {NAME}. Use one of {', '.join(MPI_OPS)}.")
    if dtype not in MPI_TYPES and dtype not in WIDENED:
        refuse(f"{what} cannot compute with {dtype} on {NAME}. Convert it, for example with tensor.float().")
    is_whole = not (dtype.is_floating_point or dtype.is_complex)
    if name in ("BAND", "BOR", "BXOR") and not is_whole:
        refuse(f"{what} cannot use ReduceOp.{name} with non-integral dtype {dtype}. Convert it first.")
    if name in ("PRODUCT", "MIN", "MAX") and dtype.is_complex:
        refuse(f"{what} cannot use ReduceOp.{name} with complex dtype {dtype}. Call torch.view_as_real first.")
    if name == "AVG" and is_whole:
        refuse(f"{what} cannot use ReduceOp.AVG with {dtype}. Use ReduceOp.SUM and divide the result.")
    return (BOOL_OPS if dtype == torch.bool else MPI_OPS)[name], name == "AVG"
