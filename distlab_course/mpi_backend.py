"""A backend for torch.distributed in Python, over mpi4py, registered when it is imported: what lab
31 leads to.

Runs on every rank: `Cluster(4, engines="mpi", backend="distlab_course.mpi_backend")`, and in a
script:

    from distlab_course import mpi_backend          # mpiexec -n 4 python script.py
    dist.init_process_group(mpi_backend.NAME)

torch hands each call of torch.distributed to a method of `Group`, which begins MPI's non-blocking
operation of that name. MPI's own waits can neither be interrupted nor given a limit, so a Work
looks again and again. What moves without being computed with travels as bytes, so every dtype does.
Source: torch/csrc/distributed/c10d/PyProcessGroup.hpp.
"""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections import deque
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from mpi4py import MPI

import distlab

NAME = "mpi4py"
OPS = {name: getattr(MPI, name) for name in ("SUM", "MIN", "MAX", "BAND", "BOR", "BXOR")}
OPS |= {"PRODUCT": MPI.PROD, "AVG": MPI.SUM}
OF_BOOLS = {"SUM": MPI.MAX, "PRODUCT": MPI.MIN}  # of bytes that are 0 or 1
# a pause is so much shorter than the wait so far
SPIN_SECONDS, LONGEST_PAUSE, PATIENCE = 0.05, 0.02, 250
# newest Works of small tensors, which are kept: DDP holds only their part in C++
SMALL_BYTES, KEPT = 64, 32
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_open: dict[Work, None] = {}  # Works whose memory MPI may still use


class Work(dist.Work):
    """One operation: it ends in wait(), and when another one begins or is waited for.

    Args:
        request: MPI's, which holds the memory that MPI reads and writes.
        outputs: the tensors that the operation gives.
        buffer: where MPI puts their numbers, one tensor's after the other's.
        divisor: what the numbers are divided by.
        size: bytes that a message must have.
    """

    def __init__(self, group, what, limit, request, outputs, buffer, divisor, size):
        super().__init__()
        self.group, self.what, self.error, self.source = group, what, "", -1
        self._limit, self._request, self._size = limit, request, size
        self._outputs, self._buffer, self._divisor = outputs, buffer, divisor
        _open[self] = None

    def is_completed(self):
        if self not in _open:
            return True
        status = MPI.Status()
        try:
            if not self._request.Test(status):
                return False
        except MPI.Exception as error:
            self.error = f"{self.what} failed in MPI: {str(error).partition(', error stack')[0]}"
        _open.pop(self, None)
        self.source = status.Get_source()
        if (
            self._size is not None
            and not self.error
            and (count := status.Get_count(MPI.BYTE)) != self._size
        ):
            self.error = f"recv got {count} bytes for a tensor of {self._size}; send and recv tensors of one size."
        if self._outputs and not self.error:
            if self._divisor != 1:
                self._buffer.div_(self._divisor)
            parts = self._buffer.view(-1).split([output.numel() for output in self._outputs])
            for output, part in zip(self._outputs, parts, strict=True):
                if part.data_ptr() != output.data_ptr():
                    output.detach().copy_(part.view(output.shape))
        return True

    def wait(self, timeout=timedelta(0)):
        began, limit = time.monotonic(), timeout.total_seconds() or self._limit
        while not self.is_completed() and time.monotonic() - began < min(limit, SPIN_SECONDS):
            os.sched_yield()
        if not self.is_completed():
            with distlab.waiting("through MPI", self.group.others) as waits:
                while not self.is_completed():
                    if time.monotonic() - began > limit:
                        words = f"Timed out waiting {limit * 1e3:.0f}ms for {self.what} operation to complete"
                        self.group.broken = words
                        raise RuntimeError(words)
                    waits.check()
                    time.sleep(min(LONGEST_PAUSE, (time.monotonic() - began) / PATIENCE))
        if self.error:
            raise RuntimeError(self.error)
        return True

    def get_future(self):
        """A Future that is done: DDP, which asks for one at once, waits for its bucket."""
        self.wait()
        future = torch.futures.Future()
        future.set_result(self.result())
        return future

    def result(self):
        return list(self._outputs)

    def _source_rank(self):
        return self.source


class Group(dist.ProcessGroup):
    """A process group whose ranks talk through an MPI communicator of its own; torch makes it and
    calls its methods.

    After a wait that ran out of time the group is broken, as gloo's is.
    """

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._timeout, self._rank, self._size, self._name, self.broken = timeout, rank, size, "", ""
        self._comm, self.others = communicator(store, rank, size, timeout)
        self._kept = deque(maxlen=KEPT)

    getBackendName = lambda self: NAME  # noqa: E731 - what torch asks every group for, and keeps for those in C++
    getGroupName = lambda self: self._name  # noqa: E731
    group_name = property(getGroupName)

    def _set_group_name(self, name):
        self._name = name

    def _get_backend(self, device):
        return self

    def shutdown(self):
        self._kept.clear()
        # MPI has room for some 2000 communicators
        if self._comm and not any(work.group is self for work in _open):
            self._comm.Free()
        self.broken = self.broken or "it was destroyed"

    abort = shutdown

    # --- collectives that compute ---

    def allreduce(self, tensors, opts=None):
        return self._compute("all_reduce", self._comm.Iallreduce, tensors[0], None, opts, tensors)

    def allreduce_coalesced(self, tensors, opts=None):
        return last_of([self.allreduce([tensor], opts) for tensor in tensors])

    def reduce(self, tensors, opts):
        begin = partial(self._comm.Ireduce, root=opts.rootRank)
        outputs = tensors if self._rank == opts.rootRank else ()
        return self._compute("reduce", begin, tensors[0], tensors[0].shape, opts, outputs)

    def reduce_scatter(self, outputs, input_lists, opts=None):
        return self.reduce_scatter_single(outputs[0], joined(input_lists[0]), opts)

    def reduce_scatter_single(self, output, input, opts=None):
        return self._compute(
            "reduce_scatter", self._comm.Ireduce_scatter_block, input, output.shape, opts, [output]
        )

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        return last_of(
            [self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        )

    def _compute(self, what, begin, given, shape, opts, outputs):
        """Begin an operation on a tensor; its result has a shape of its own, or, with None, the
        tensor's memory.

        An average is a sum, which is divided by the size in the end.
        """
        name = (dist.ReduceOp.SUM if opts is None else opts.reduceOp.op).name
        if name not in OPS:
            raise RuntimeError(f"{NAME} cannot use ReduceOp.{name}. Use one of {', '.join(OPS)}.")
        op = OF_BOOLS.get(name, OPS[name]) if given.dtype == torch.bool else OPS[name]
        sent = computable(given)
        got = sent if shape is None else torch.empty(shape, dtype=sent.dtype)
        begin = partial(begin, MPI.IN_PLACE if got is sent else sent.numpy(), got.numpy(), op)
        return self._begin(what, begin, opts, outputs, got, self._size if name == "AVG" else 1)

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
        return self._exchange(
            "all_gather", output.view(-1).chunk(self._size), [input] * self._size, opts
        )

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        return last_of(
            [self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        )

    def gather(self, output_lists, inputs, opts):
        nothing, at_root = [inputs[0].new_empty(0)] * self._size, self._rank == opts.rootRank
        given = [*nothing[: opts.rootRank], inputs[0], *nothing[opts.rootRank + 1 :]]
        return self._exchange("gather", output_lists[0] if at_root else nothing, given, opts)

    def scatter(self, outputs, input_lists, opts):
        nothing, at_root = [outputs[0].new_empty(0)] * self._size, self._rank == opts.rootRank
        wanted = [*nothing[: opts.rootRank], outputs[0], *nothing[opts.rootRank + 1 :]]
        return self._exchange("scatter", wanted, input_lists[0] if at_root else nothing, opts)

    def alltoall(self, outputs, inputs, opts=None):
        return self._exchange("all_to_all", outputs, inputs, opts)

    def all_to_all_single(self, output, input, output_splits, input_splits, opts=None):
        even = [[len(tensor) // self._size] * self._size for tensor in (output, input)]
        parts = output.split(output_splits or even[0]), input.split(input_splits or even[1])
        return self._exchange("all_to_all_single", *parts, opts)

    def _exchange(self, what, outputs, inputs, opts):
        """Send the inputs to the ranks, one to each, and receive the outputs from them."""
        sent, received = ([tensor.nbytes for tensor in tensors] for tensors in (inputs, outputs))
        whole = torch.empty(sum(output.numel() for output in outputs), dtype=outputs[0].dtype)
        ends = [raw(joined(inputs)), sent, MPI.BYTE], [raw(whole), received, MPI.BYTE]
        return self._begin(what, partial(self._comm.Ialltoallv, *ends), opts, outputs, whole)

    def barrier(self, opts=None):
        return self._begin("barrier", self._comm.Ibarrier, opts)

    # --- messages ---

    def send(self, tensors, dst, tag=0):
        return self._begin("send", partial(self._comm.Isend, raw(tensors[0]), dst, tag))

    def recv(self, tensors, src, tag=0):
        return self._recv(tensors, src, tag)

    def recv_anysource(self, tensors, tag=0):
        return self._recv(tensors, MPI.ANY_SOURCE, tag)

    def _recv(self, tensors, src, tag):
        begin = partial(self._comm.Irecv, raw(tensors[0]), src, tag)
        return self._begin("recv", begin, None, tensors, tensors[0], size=tensors[0].nbytes)

    def _begin(self, what, begin, opts=None, outputs=(), buffer=None, divisor=1, size=None):
        """Begin an operation; what MPI puts into the buffer goes into the outputs, divided."""
        if self.broken:
            raise RuntimeError(
                f"{what} cannot begin: the group is broken ({self.broken}). Make it again."
            )
        for work in list(_open):
            work.is_completed()
        limit = getattr(opts, "timeout", timedelta(0)).total_seconds()
        limit = limit if limit > 0 else self._timeout.total_seconds()
        work = Work(self, what, limit, begin(), outputs, buffer, divisor, size)
        if sum(output.nbytes for output in outputs) <= SMALL_BYTES:
            self._kept.append(work)
        return work

    # the names of torch before 2.13
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _allgather_base, _reduce_scatter_base, alltoall_base = (
        all_gather_single,
        reduce_scatter_single,
        all_to_all_single,
    )


def raw(tensor):
    """A contiguous tensor's memory as bytes."""
    return tensor.detach().view(-1).view(torch.uint8).numpy()


def computable(tensor):
    """The tensor's memory where MPI can compute with it, else a copy: halves as float32, which is
    also more exact.
    """
    tensor = tensor.detach()
    tensor = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    return (tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor).contiguous()


def joined(tensors):
    """The elements of all, one after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def last_of(works):
    """The last of several Works, for all of them."""
    for work in works[:-1]:
        work.wait()
    return works[-1]


def communicator(store, rank, size, timeout):
    """A communicator of the group's processes, in the group's order, and the other members' numbers
    in MPI's world.

    Each member writes its number into the store and waits for the others', because MPI's own call
    has no limit.
    """
    world, keys = MPI.COMM_WORLD, [f"{NAME}/{other}" for other in range(size)]
    store.set(keys[rank], str(world.rank))
    store.wait(keys, timeout)
    members = [int(store.get(key)) for key in keys]
    if len({*members}) < size:
        advice = f'mpiexec -n {size} python script.py, or Cluster({size}, engines="mpi", backend="{__name__}")'
        what = f"{size} processes that one mpiexec started, and MPI knows {world.size} here. Start them with {advice}."
        raise RuntimeError(f"{NAME} needs {what}")
    # apart from others made now
    comm = world.Create_group(world.group.Incl(members), hash(tuple(members)) & 0x7FFF)
    return comm, [member for member in members if member != world.rank]


@atexit.register
def _end():
    """End MPI while the memory of messages that are under way is there; end all processes if one
    will never arrive.
    """
    for work in list(_open):
        work.is_completed()
    if any(work.group.broken for work in _open):
        MPI.COMM_WORLD.Abort(1)
    if not MPI.Is_finalized():
        MPI.Finalize()


def _set_environment(world):
    """Under mpiexec alone, set what init_process_group looks for in the environment: numbers and an
    address.
    """
    hosts = world.allgather(socket.gethostname())
    with socket.create_server(("", 0)) as free:
        port = world.bcast(free.getsockname()[1])
    address = hosts[0] if len({*hosts}) > 1 else "127.0.0.1"
    for name, value in zip(VARIABLES, (world.rank, world.size, address, port), strict=True):
        os.environ.setdefault(name, str(value))


dist.Backend.register_backend(NAME, Group, devices=["cpu"])
if MPI.COMM_WORLD.size > 1 and "RANK" not in os.environ:
    _set_environment(MPI.COMM_WORLD)
