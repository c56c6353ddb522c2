"""A backend for torch.distributed in Python, over mpi4py, registered when it is imported.

Lab 31 leads to it. Runs on every rank: `Cluster(4, engines="mpi",
backend="distlab_course.mpi_backend")`, and in a script:

    from distlab_course import mpi_backend          # mpiexec -n 4 python script.py
    dist.init_process_group(mpi_backend.NAME)

torch hands each call of torch.distributed to a method of `Group`, which begins MPI's non-blocking
operation of that name; `mpi_work` waits for it. What moves without being computed with travels as
bytes, so every dtype does.
Source: torch/csrc/distributed/c10d/PyProcessGroup.hpp.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from mpi4py import MPI

from distlab_course.mpi_work import Work, has_open_work, last_of, look_at_all

NAME = "mpi4py"
# MPI's operators, by the names of torch's; an average is a sum that is divided in the end
OPS = {
    "SUM": MPI.SUM,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
    "PRODUCT": MPI.PROD,
    "AVG": MPI.SUM,
}
OF_BOOLS = {"SUM": MPI.MAX, "PRODUCT": MPI.MIN}  # of bytes that are 0 or 1
# newest Works of small tensors, which are kept: DDP holds only their part in C++
SMALL_BYTES = 64
KEPT = 32


class Group(dist.ProcessGroup):
    """A process group whose ranks talk through an MPI communicator of its own.

    torch makes it and calls its methods. After a wait that ran out of time the group is broken, as
    gloo's is.
    """

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._timeout = timeout
        self._rank = rank
        self._size = size
        self._name = ""
        self.broken = ""  # why the group cannot be used any more
        comm, others = communicator(store, rank, size, timeout)
        self._comm = comm
        self.others = others
        self._kept = deque(maxlen=KEPT)

    # what torch asks every group for, and keeps for those in C++

    def getBackendName(self):
        return NAME

    def getGroupName(self):
        return self._name

    group_name = property(getGroupName)

    def _set_group_name(self, name):
        self._name = name

    def _get_backend(self, device):
        return self

    def shutdown(self):
        self._kept.clear()
        # MPI has room for some 2000 communicators
        if self._comm and not has_open_work(self):
            self._comm.Free()
        self.broken = self.broken or "it was destroyed"

    abort = shutdown

    # --- collectives that compute ---

    def allreduce(self, tensors, opts=None):
        return self._compute(
            "all_reduce", self._comm.Iallreduce, tensors[0], shape=None, opts=opts, outputs=tensors
        )

    def allreduce_coalesced(self, tensors, opts=None):
        works = [self.allreduce([tensor], opts) for tensor in tensors]
        return last_of(works)

    def reduce(self, tensors, opts):
        begin = partial(self._comm.Ireduce, root=opts.rootRank)
        outputs = []
        if self._rank == opts.rootRank:
            outputs = tensors
        given = tensors[0]
        return self._compute("reduce", begin, given, shape=given.shape, opts=opts, outputs=outputs)

    def reduce_scatter(self, outputs, input_lists, opts=None):
        return self.reduce_scatter_single(outputs[0], joined(input_lists[0]), opts)

    def reduce_scatter_single(self, output, input, opts=None):
        begin = self._comm.Ireduce_scatter_block
        return self._compute(
            "reduce_scatter", begin, input, shape=output.shape, opts=opts, outputs=[output]
        )

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        works = []
        for output, input in zip(outputs, inputs, strict=True):
            works.append(self.reduce_scatter_single(output, input, opts))
        return last_of(works)

    def _compute(self, what, begin, given, *, shape, opts, outputs):
        """Begin an operation on a tensor.

        Its result has a shape of its own, or, with None, the tensor's memory. An average is a sum,
        which is divided by the size in the end.
        """
        reduce_op = dist.ReduceOp.SUM
        if opts is not None:
            reduce_op = opts.reduceOp.op
        name = reduce_op.name
        if name not in OPS:
            raise RuntimeError(f"{NAME} cannot use ReduceOp.{name}. Use one of {', '.join(OPS)}.")
        op = OPS[name]
        if given.dtype == torch.bool:
            op = OF_BOOLS.get(name, op)
        sent = computable(given)
        if shape is None:
            got = sent
            begin = partial(begin, MPI.IN_PLACE, got.numpy(), op)
        else:
            got = torch.empty(shape, dtype=sent.dtype)
            begin = partial(begin, sent.numpy(), got.numpy(), op)
        divisor = 1
        if name == "AVG":
            divisor = self._size
        return self._begin(what, begin, opts, outputs, got, divisor)

    # --- collectives that move ---

    def broadcast(self, tensors, opts):
        buffer = tensors[0].detach().contiguous()
        begin = partial(self._comm.Ibcast, raw(buffer), opts.rootRank)
        return self._begin("broadcast", begin, opts, tensors, buffer)

    def allgather(self, output_lists, inputs, opts=None):
        return self._exchange("all_gather", output_lists[0], inputs * self._size, opts)

    def all_gather_single(self, output, input, opts=None):
        if output.numel() != self._size * input.numel():
            times = f"{self._size} times {input.numel()}"
            raise RuntimeError(
                f"all_gather needs a tensor of {times} elements, got {output.numel()}."
            )
        outputs = output.view(-1).chunk(self._size)
        return self._exchange("all_gather", outputs, [input] * self._size, opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        works = []
        for output, input in zip(outputs, inputs, strict=True):
            works.append(self.all_gather_single(output, input, opts))
        return last_of(works)

    def gather(self, output_lists, inputs, opts):
        given = self._nothing_like(inputs[0])
        given[opts.rootRank] = inputs[0]
        wanted = self._nothing_like(inputs[0])
        if self._rank == opts.rootRank:
            wanted = output_lists[0]
        return self._exchange("gather", wanted, given, opts)

    def scatter(self, outputs, input_lists, opts):
        wanted = self._nothing_like(outputs[0])
        wanted[opts.rootRank] = outputs[0]
        given = self._nothing_like(outputs[0])
        if self._rank == opts.rootRank:
            given = input_lists[0]
        return self._exchange("scatter", wanted, given, opts)

    def _nothing_like(self, tensor):
        """An empty tensor of this dtype for each rank."""
        return [tensor.new_empty(0)] * self._size

    def alltoall(self, outputs, inputs, opts=None):
        return self._exchange("all_to_all", outputs, inputs, opts)

    def all_to_all_single(self, output, input, output_splits, input_splits, opts=None):
        outputs = output.split(output_splits or self._even_splits(output))
        inputs = input.split(input_splits or self._even_splits(input))
        return self._exchange("all_to_all_single", outputs, inputs, opts)

    def _even_splits(self, tensor):
        """The lengths of as many equal parts as there are ranks."""
        return [len(tensor) // self._size] * self._size

    def _exchange(self, what, outputs, inputs, opts):
        """Send the inputs to the ranks, one to each, and receive the outputs from them."""
        size = sum(output.numel() for output in outputs)
        whole = torch.empty(size, dtype=outputs[0].dtype)
        bytes_to = [tensor.nbytes for tensor in inputs]  # by rank
        bytes_from = [tensor.nbytes for tensor in outputs]
        sent = [raw(joined(inputs)), bytes_to, MPI.BYTE]
        received = [raw(whole), bytes_from, MPI.BYTE]
        begin = partial(self._comm.Ialltoallv, sent, received)
        return self._begin(what, begin, opts, outputs, whole)

    def barrier(self, opts=None):
        return self._begin("barrier", self._comm.Ibarrier, opts)

    # --- messages ---

    def send(self, tensors, dst, tag=0):
        begin = partial(self._comm.Isend, raw(tensors[0]), dst, tag)
        return self._begin("send", begin)

    def recv(self, tensors, src, tag=0):
        return self._recv(tensors, src, tag)

    def recv_anysource(self, tensors, tag=0):
        return self._recv(tensors, MPI.ANY_SOURCE, tag)

    def _recv(self, tensors, src, tag):
        tensor = tensors[0]
        begin = partial(self._comm.Irecv, raw(tensor), src, tag)
        return self._begin("recv", begin, outputs=tensors, buffer=tensor, size=tensor.nbytes)

    def _begin(self, what, begin, opts=None, outputs=(), buffer=None, divisor=1, size=None):
        """Begin an operation; what MPI puts into the buffer goes into the outputs, divided."""
        if self.broken:
            raise RuntimeError(
                f"{what} cannot begin: the group is broken ({self.broken}). Make it again."
            )
        look_at_all()
        timeout = getattr(opts, "timeout", timedelta(0))
        if timeout <= timedelta(0):
            timeout = self._timeout
        work = Work(
            self,
            what,
            limit=timeout.total_seconds(),
            request=begin(),
            outputs=outputs,
            buffer=buffer,
            divisor=divisor,
            size=size,
        )
        if sum(output.nbytes for output in outputs) <= SMALL_BYTES:
            self._kept.append(work)
        return work

    # the names of torch before 2.13
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single


def raw(tensor):
    """A contiguous tensor's memory as bytes."""
    flat = tensor.detach().view(-1)
    return flat.view(torch.uint8).numpy()


def computable(tensor):
    """The tensor's memory where MPI can compute with it, else a copy.

    Halves are copied as float32, which is also more exact.
    """
    tensor = tensor.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    elif tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8)
    return tensor.contiguous()


def joined(tensors):
    """The elements of all, one after the other."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    return torch.cat(flat)


def communicator(store, rank, size, timeout):
    """A communicator of the group's processes, and the other members' numbers in MPI's world.

    The processes are in the group's order. Each member writes its number into the store and waits
    for the others' numbers, because MPI's own call has no limit.
    """
    world = MPI.COMM_WORLD
    keys = [f"{NAME}/{other}" for other in range(size)]
    store.set(keys[rank], str(world.rank))
    store.wait(keys, timeout)
    members = [int(store.get(key)) for key in keys]
    if len(set(members)) < size:
        raise RuntimeError(
            f"{NAME} needs {size} processes that one mpiexec started, and MPI knows {world.size} "
            f"here. Start them with mpiexec -n {size} python script.py, or "
            f'Cluster({size}, engines="mpi", backend="{__name__}").'
        )
    # by a tag of its own, so that it is not mixed up with others that are made at the same time
    tag = hash(tuple(members)) & 0x7FFF
    comm = world.Create_group(world.group.Incl(members), tag)
    others = [member for member in members if member != world.rank]
    return comm, others


def _set_environment(world):
    """Under mpiexec alone, set the numbers and the address that init_process_group looks for."""
    hosts = world.allgather(socket.gethostname())
    with socket.create_server(("", 0)) as free:
        port = world.bcast(free.getsockname()[1])
    address = "127.0.0.1"
    if len(set(hosts)) > 1:
        address = hosts[0]
    os.environ.setdefault("RANK", str(world.rank))
    os.environ.setdefault("WORLD_SIZE", str(world.size))
    os.environ.setdefault("MASTER_ADDR", address)
    os.environ.setdefault("MASTER_PORT", str(port))


dist.Backend.register_backend(NAME, Group, devices=["cpu"])
if MPI.COMM_WORLD.size > 1 and "RANK" not in os.environ:
    _set_environment(MPI.COMM_WORLD)
