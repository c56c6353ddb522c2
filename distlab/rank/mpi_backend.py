"""A backend for torch.distributed in Python, over mpi4py: `init_process_group("mpi4py")` where torch has no MPI.

Runs on every rank; torch and mpi4py only, so it also serves a script without a notebook:

    from distlab import mpi_backend          # mpiexec -n 4 python script.py
    mpi_backend.register()
    dist.init_process_group("mpi4py")

A process that raises does not end the others, which MPI expects to go on: `mpiexec -n 4 python -m mpi4py script.py`
ends all when one raises.

torch hands each call of torch.distributed to a method of `Group`. A method puts MPI's non-blocking operation of that
name on the process's queue, see mpi_queue.py. What moves without being computed with travels as bytes, so every dtype
does. An array lends MPI the memory of its tensor, and keeps it alive. What MPI refuses, the Work raises.
Source: torch/csrc/distributed/c10d/PyProcessGroup.hpp.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

from distlab.compat.torch import PythonGroup
from distlab.rank.mpi_queue import NAME, Begins, Work, communicator, free_communicator, process_queue, refuse

Tensors = Sequence[Tensor]
OPS = {name: getattr(MPI, name) for name in ("SUM", "MIN", "MAX", "BAND", "BOR", "BXOR")}
OPS |= {"PRODUCT": MPI.PROD, "AVG": MPI.SUM}
OF_BOOLS = {"SUM": MPI.MAX, "PRODUCT": MPI.MIN}  # of bytes that are 0 or 1
WIDENED = (torch.float16, torch.bfloat16)  # reduced as float32, which is also closer to the exact sum


def register() -> None:
    """Make "mpi4py" a backend; a second time does nothing.

    Under mpiexec it also puts into the environment what `init_process_group` looks for there and nobody has set: RANK,
    WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    Runs on: every process that mpiexec started (the first call waits for all).
    """
    if NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, Group, devices=["cpu"])
    world = MPI.COMM_WORLD
    started = world.size > 1 or any(name.startswith(("PMI_", "PMIX_", "OMPI_")) for name in os.environ)
    if not started or "RANK" in os.environ:
        return
    hosts = world.allgather(socket.gethostname())
    with socket.socket() as free:
        free.bind(("", 0))
        port = world.bcast(free.getsockname()[1])
    place = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": hosts[: world.rank].count(hosts[world.rank])}
    address = "127.0.0.1" if len({*hosts}) == 1 else hosts[0]
    for name, value in {**place, "MASTER_ADDR": address, "MASTER_PORT": port}.items():
        os.environ.setdefault(name, str(value))


class Group(PythonGroup):
    """A process group whose ranks talk through an MPI communicator of its own.

    torch makes it, by `init_process_group` and `new_group`, and calls its methods with torch's own arguments: tensors
    in lists, ranks of the group. Collectives take tensors of any strides; messages must be
    contiguous, as on gloo. After a wait that ran out of time the group is broken, as gloo's is.

    Attributes:
        broken: why nothing can begin any more, or "".

    Raises:
        RuntimeError: the processes were not started by one mpiexec; on a call, what this backend cannot do.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
        super().__init__(NAME, rank, size, timeout)
        self.broken = ""
        self._comm = communicator(store, rank, size, timeout)
        weakref.finalize(self, free_communicator, self._comm).atexit = False

    def shutdown(self) -> None:
        """What destroy_process_group calls; waits for nobody."""
        process_queue().give_up("the group was destroyed", self)
        self.broken = self.broken or "it was destroyed"
        self.small.clear()

    abort = shutdown

    # --- collectives that compute ---

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        op, divisor = self._operation("all_reduce", opts, tensors)
        buffers = [computable(tensor) for tensor in tensors]
        begins = [partial(self._comm.Iallreduce, MPI.IN_PLACE, buffer.numpy(), op) for buffer in buffers]
        return self._put("all_reduce", begins, opts, tensors, buffers, divisor)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        op, divisor = self._operation("reduce", opts, tensors)
        buffer = computable(tensors[0])
        if self._rank == opts.rootRank:
            begin = partial(self._comm.Ireduce, MPI.IN_PLACE, buffer.numpy(), op, opts.rootRank)
            return self._put("reduce", [begin], opts, tensors, [buffer], divisor)
        begin = partial(self._comm.Ireduce, buffer.numpy(), None, op, opts.rootRank)
        return self._put("reduce", [begin], opts, tensors, tensors)

    def reduce_scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced(outputs, [joined(input_lists[0])], opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        op, divisor = self._operation("reduce_scatter", opts, [*outputs, *inputs])
        sent = [computable(tensor) for tensor in inputs]
        got = [torch.empty(output.numel(), dtype=sent[0].dtype) for output in outputs]
        scatter = self._comm.Ireduce_scatter_block
        begins = [partial(scatter, one.numpy(), other.numpy(), op) for one, other in zip(sent, got, strict=True)]
        return self._put("reduce_scatter", begins, opts, outputs, got, divisor)

    def _operation(self, what: str, opts: Any, tensors: Tensors) -> tuple[MPI.Op, int]:
        """MPI's operation for torch's, and by what its result must be divided, which is the size for an average."""
        dtype = movable(what, tensors)[0].dtype
        name = (dist.ReduceOp.SUM if opts is None else opts.reduceOp.op).name
        if name not in OPS:
            refuse(f"{what} cannot use ReduceOp.{name} with {NAME}. Use one of {', '.join(OPS)}.")
        if name == "AVG" and not (dtype.is_floating_point or dtype.is_complex):
            refuse(f"{what} cannot use ReduceOp.AVG with {dtype}. Use ReduceOp.SUM and divide the result.")
        op = OF_BOOLS.get(name, OPS[name]) if dtype == torch.bool else OPS[name]
        return op, self._size if name == "AVG" else 1

    # --- collectives that move ---

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        buffer = movable("broadcast", tensors)[0].detach().contiguous()
        begin = partial(self._comm.Ibcast, raw(buffer), opts.rootRank)
        return self._put("broadcast", [begin], opts, tensors, [buffer])

    def allgather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        whole = torch.empty((self._size, *inputs[0].shape), dtype=inputs[0].dtype)
        return self._put("all_gather", self._all_gathers([whole], inputs), opts, output_lists[0], list(whole))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        wholes = [output.detach().contiguous() for output in movable("all_gather", outputs)]
        return self._put("all_gather", self._all_gathers(wholes, inputs), opts, outputs, wholes)

    def _all_gathers(self, wholes: Tensors, inputs: Tensors) -> Begins:
        begins = []
        for given, whole in zip(movable("all_gather", inputs), wholes, strict=True):
            if whole.nbytes != self._size * given.nbytes:
                times = f"{self._size} times {given.numel()}"
                refuse(f"all_gather needs a tensor of {times} elements, got {whole.numel()}.")
            sent = given.detach().contiguous()
            if sent.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
                # the input may be this rank's share of the output, as in FSDP; MPI wants them apart
                sent = sent.clone()
            begins.append(partial(self._comm.Iallgather, raw(sent), raw(whole)))
        return begins

    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        given = [inputs[0] if rank == opts.rootRank else inputs[0].new_empty(0) for rank in range(self._size)]
        outputs = output_lists[0] if self._rank == opts.rootRank else [inputs[0].new_empty(0)] * self._size
        return self._exchange("gather", outputs, given, opts)

    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:
        got = [outputs[0] if rank == opts.rootRank else outputs[0].new_empty(0) for rank in range(self._size)]
        inputs = input_lists[0] if self._rank == opts.rootRank else [outputs[0].new_empty(0)] * self._size
        return self._exchange("scatter", got, inputs, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self._exchange("all_to_all", outputs, inputs, opts)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> Work:
        outputs, inputs = self._shares(output, output_splits), self._shares(input, input_splits)
        return self._exchange("all_to_all_single", outputs, inputs, opts)

    def _shares(self, tensor: Tensor, splits: list[int]) -> Tensors:
        """The rows of a tensor for each rank; without splits all have as many."""
        return tensor.split(splits or [len(tensor) // self._size] * self._size)

    def _exchange(self, what: str, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        """Send the inputs to the ranks, one to each, and receive the outputs from them."""
        movable(what, [*outputs, *inputs])
        sent, received = ([tensor.nbytes for tensor in tensors] for tensors in (inputs, outputs))
        sizes = [output.numel() for output in outputs]
        whole = torch.empty(sum(sizes), dtype=outputs[0].dtype)
        given, got = [raw(joined(inputs)), sent, MPI.BYTE], [raw(whole), received, MPI.BYTE]
        return self._put(what, [partial(self._comm.Ialltoallv, given, got)], opts, outputs, whole.split(sizes))

    def barrier(self, opts: Any = None) -> Work:
        return self._put("barrier", [self._comm.Ibarrier], opts, [], [])

    # --- messages ---

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        (tensor,) = movable("send", tensors, contiguous=True)
        return self._put("send", [partial(self._comm.Isend, raw(tensor), dst, tag)], None, tensors, tensors)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        return self._recv(tensors, src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        return self._recv(tensors, MPI.ANY_SOURCE, tag)

    def _recv(self, tensors: Tensors, src: int, tag: int) -> Work:
        (tensor,) = movable("recv", tensors, contiguous=True)
        begin = partial(self._comm.Irecv, raw(tensor), src, tag)
        return self._put("recv", [begin], None, tensors, tensors, size=tensor.nbytes)

    # --- the names of torch before 2.13 ---

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- what they share ---

    def _put(
        self, what: str, begins: Begins, opts: Any, outputs: Tensors, buffers: Tensors, divisor: int = 1, size: int = -1
    ) -> Work:
        """Put an operation on the queue; MPI's results come in `buffers` and go into `outputs`, divided.

        Args:
            size: of a message that is received, in bytes.
        """
        if self.broken:
            refuse(f"{what} cannot begin: the group is broken ({self.broken}). Destroy it and make it again.")
        if len(outputs) != len(buffers):
            refuse(f"{what} needs a list of {len(buffers)} tensors, one a rank of the group, got {len(outputs)}.")

        def finish(status: MPI.Status) -> None:
            if size >= 0 and (came := status.Get_count(MPI.BYTE)) != size:
                refuse(f"recv got {came} bytes for a tensor of {size}; send and recv tensors of one size.")
            for output, buffer in zip(outputs, buffers, strict=True):
                if divisor != 1:
                    buffer.div_(divisor)
                if buffer is not output and buffer.data_ptr() != output.data_ptr():
                    output.detach().copy_(buffer.view(output.shape))

        limit = getattr(opts, "timeout", None)
        limit = limit if limit is not None and limit > timedelta(0) else self.timeout
        work = Work(self, what, limit.total_seconds(), begins, outputs, finish)
        process_queue().put(work)
        self.keep_small(work, sum(output.nbytes for output in outputs))
        return work


def raw(tensor: Tensor) -> np.ndarray:
    """A contiguous tensor's memory as bytes."""
    return tensor.detach().view(-1).view(torch.uint8).numpy()


def computable(tensor: Tensor) -> Tensor:
    """The tensor's memory where MPI can compute with it, else a copy where it can."""
    tensor = tensor.detach()
    if tensor.dtype in WIDENED:
        tensor = tensor.float()
    if tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8)
    return tensor.contiguous()


def joined(tensors: Iterable[Tensor]) -> Tensor:
    """The elements of all, one after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def movable(what: str, tensors: Tensors, contiguous: bool = False) -> Tensors:
    """Dense tensors in the memory of this process, whose bytes can be sent."""
    if not tensors:
        refuse(f"{what} needs a tensor, got an empty list.")
    for tensor in tensors:
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            kind = f"{tensor.device.type} tensor" if tensor.layout == torch.strided else f"{tensor.layout} tensor"
            refuse(f"{what} on {NAME} needs dense CPU tensors, got a {kind}. Call tensor.cpu() or tensor.to_dense().")
        if contiguous and not tensor.is_contiguous():
            refuse(f"{what} needs a contiguous tensor, got strides {tensor.stride()}. Call tensor.contiguous().")
    return tensors
