"""A backend for torch.distributed in Python, over mpi4py: `init_process_group("mpi4py")` where torch has no MPI.

Runs on every rank; torch and mpi4py only, so it also serves a script without a notebook:

    from distlab import mpi_backend          # mpiexec -n 4 python script.py
    mpi_backend.register()
    dist.init_process_group("mpi4py")

A process that raises does not end the others, which MPI expects to go on: `mpiexec -n 4 python -m mpi4py script.py`
ends all when one raises.

torch hands each call of torch.distributed to a method of `Group`. A method begins MPI's non-blocking operation of that
name on the tensors' own memory and returns a `mpi_work.Work`. What moves without being computed with travels as bytes,
so every dtype does. Source: torch/csrc/distributed/c10d/PyProcessGroup.hpp; MPI 4.1, chapters 3 and 6.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from distlab import mpi_world
from distlab.mpi_progress import progress
from distlab.mpi_tensors import (
    NAME,
    bytes_by_rank,
    check_count,
    check_list,
    check_shares,
    check_tag,
    computable,
    give,
    give_shares,
    movable,
    numbers,
    operation,
    raw,
    refuse,
    row_bytes,
)
from distlab.mpi_work import Work, words


def register() -> None:
    """Make "mpi4py" a backend; a second time does nothing.

    Under mpiexec it also puts into the environment what `init_process_group` looks for there and nobody has set: RANK,
    WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    Runs on: every process that mpiexec started (the first call waits for all).
    """
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, Group, devices=["cpu"])
        mpi_world.fill_environment()


class Group(dist.ProcessGroup):
    """A process group whose ranks talk through an MPI communicator of its own.

    torch makes it, by `init_process_group` and `new_group`, and calls its methods with torch's own arguments: tensors
    in lists, ranks of the group. Collectives take tensors of any strides; messages and `all_to_all_single` must be
    contiguous, as on gloo. After a wait that ran out of time the group is broken, as gloo's is.

    Attributes:
        timeout: the limit of a wait that is given none otherwise.

    Raises:
        RuntimeError: the processes were not started by one mpiexec; on a call, what this backend cannot do.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
        super().__init__(rank, size)
        self._size, self.timeout = size, timeout  # torch's size() takes 10 microseconds
        self._broken: list[str] = []  # why; shared with what outlives the group
        self._name = ""
        self._comm = mpi_world.communicator(store, rank, size, timeout)
        weakref.finalize(self, mpi_world.free, self._comm, self._broken).atexit = False

    def getBackendName(self) -> str:
        return NAME

    # torch gives a group its name and reads it, from Python and from C++; without a backend of C++ nobody else keeps it

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    group_name = property(operator.attrgetter("_name"))

    def __repr__(self) -> str:
        return f"<{NAME} group, rank {self.rank()} of {self._size}>"

    def shutdown(self) -> None:
        """What destroy_process_group calls; waits for nobody."""
        progress().leave(self._broken)

    abort = shutdown

    # --- collectives that compute ---

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        (tensor,) = tensors
        if tensor.layout is torch.sparse_coo:
            return self._sparse_all_reduce(tensor, opts)
        begin, finish, buffer = self._all_reduce("all_reduce", tensor, opts)
        return self._begin("all_reduce", begin, tensors, finish, opts, buffer)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        what = "all_reduce_coalesced"
        movable(what, tensors)
        begins, finishes, buffers = zip(*(self._all_reduce(what, tensor, opts) for tensor in tensors), strict=True)

        def finish() -> None:
            for each in filter(None, finishes):
                each()

        return self._begin(what, lambda: [begin() for begin in begins], tensors, finish, opts, buffers)

    def _all_reduce(
        self, what: str, tensor: torch.Tensor, opts: Any
    ) -> tuple[Callable[[], MPI.Request], Callable[[], None] | None, torch.Tensor]:
        """What begins it, what finishes it if anything is left to do then, and the memory that MPI computes in."""
        op, average = operation(what, opts, movable(what, [tensor]), self._size)
        buffer = computable(tensor)
        begin = functools.partial(self._comm.Iallreduce, MPI.IN_PLACE, numbers(buffer), op)
        return (
            begin,
            None if buffer is tensor and average == 1 else functools.partial(give, tensor, buffer, average),
            buffer,
        )

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        (tensor,) = tensors
        op, average = operation("reduce", opts, movable("reduce", tensors), self._size)
        buffer, is_root = computable(tensor), opts.rootRank == self.rank()

        def begin() -> MPI.Request:
            given = (MPI.IN_PLACE, numbers(buffer)) if is_root else (numbers(buffer), None)
            return self._comm.Ireduce(*given, op, opts.rootRank)

        def finish() -> None:
            if is_root:
                give(tensor, buffer, average)

        return self._begin("reduce", begin, tensors, finish, opts, buffer)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], input_lists: list[list[torch.Tensor]], opts: Any = None
    ) -> Work:
        inputs, (output,) = input_lists[0], outputs
        if len(inputs) != self._size or inputs[self.rank()].numel() != output.numel():
            refuse(f"reduce_scatter needs {self._size} tensors, the one of this rank as large as the output.")
        counts = [tensor.numel() for tensor in inputs]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in movable("reduce_scatter", inputs)])
        return self._reduce_scatter("reduce_scatter", [(output, flat, counts)], opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._reduce_scatter_wholes([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._reduce_scatter_wholes(outputs, inputs, opts)

    def _reduce_scatter_wholes(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Work:
        for output, given in zip(outputs, inputs, strict=True):
            check_shares("reduce_scatter_single", given, output, self._size)
        parts = [(o, i, [o.numel()] * self._size) for o, i in zip(outputs, inputs, strict=True)]
        return self._reduce_scatter("reduce_scatter_single", parts, opts)

    def _reduce_scatter(self, what: str, parts: list[tuple[torch.Tensor, torch.Tensor, list[int]]], opts: Any) -> Work:
        """Parts are (output, input, elements of the input by rank)."""
        outputs = [output for output, _, _ in parts]
        op, average = operation(what, opts, movable(what, [*outputs, *(given for _, given, _ in parts)]), self._size)
        sent = [computable(given) for _, given, _ in parts]
        got = [torch.empty(output.numel(), dtype=one.dtype) for output, one in zip(outputs, sent, strict=True)]

        def begin() -> list[MPI.Request]:
            return [
                self._comm.Ireduce_scatter(numbers(one), numbers(other), counts, op)
                for one, other, (_, _, counts) in zip(sent, got, parts, strict=True)
            ]

        def finish() -> None:
            for output, buffer in zip(outputs, got, strict=True):
                give(output, buffer, average)

        return self._begin(what, begin, outputs, finish, opts, (sent, got))

    def _sparse_all_reduce(self, tensor: torch.Tensor, opts: Any) -> Work:
        """The sum of sparse tensors. How many values each rank has is asked first, in a collective that is waited for.

        Source: ProcessGroupGloo's AsyncSparseAllreduceWork, which gathers indices and values likewise.
        """
        if operation("all_reduce", opts, [tensor], self._size) != (MPI.SUM, 1):
            refuse("all_reduce of sparse tensors must be with ReduceOp.SUM. Call to_dense() first for others.")
        mine = tensor.detach().coalesce()
        count = torch.tensor([mine._nnz()])
        counts = torch.empty(self._size, dtype=torch.int64)
        self._all_gather_wholes([counts], [count], opts).wait()
        lengths, values, rows = counts.tolist(), mine.values().contiguous(), mine.indices().t().contiguous()
        all_values = values.new_empty((sum(lengths), *values.shape[1:]))
        all_rows = rows.new_empty((sum(lengths), rows.shape[1]))

        def begin() -> list[MPI.Request]:
            return [
                self._comm.Iallgatherv(raw(one), [raw(every)[0], [n * row_bytes(every) for n in lengths], MPI.BYTE])
                for one, every in ((values, all_values), (rows, all_rows))
            ]

        def finish() -> None:
            with torch.no_grad():
                tensor.copy_(torch.sparse_coo_tensor(all_rows.t(), all_values, tensor.shape).coalesce())

        return self._begin("all_reduce", begin, [tensor], finish, opts, (values, rows, all_values, all_rows))

    # --- collectives that move ---

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        (tensor,) = movable("broadcast", tensors)
        buffer = tensor.detach().contiguous()

        def finish() -> None:
            if opts.rootRank != self.rank():
                give(tensor, buffer)

        return self._begin(
            "broadcast", lambda: self._comm.Ibcast(raw(buffer), opts.rootRank), tensors, finish, opts, buffer
        )

    def allgather(self, output_lists: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        return self._all_gather_lists("all_gather", [[output] for output in output_lists[0]], inputs, opts)

    def allgather_coalesced(
        self, output_lists: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._all_gather_lists("all_gather_coalesced", output_lists, inputs, opts)

    def _all_gather_lists(
        self, what: str, output_lists: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        """The lists are by rank, and in each are the outputs by input."""
        check_count(what, output_lists, self._size)
        outputs = [list(column) for column in zip(*output_lists, strict=True)]  # by input, then by rank
        for column, given in zip(outputs, inputs, strict=True):
            check_list(what, column, given, self._size)
        flats = [torch.empty(self._size * one.numel(), dtype=one.dtype) for one in inputs]

        def finish() -> None:
            for column, flat in zip(outputs, flats, strict=True):
                give_shares(column, flat)

        result = [output for column in outputs for output in column]
        return self._all_gather(what, flats, inputs, result, finish, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._all_gather_wholes([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._all_gather_wholes(outputs, inputs, opts)

    def _all_gather_wholes(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Work:
        for output, given in zip(outputs, inputs, strict=True):
            check_shares("all_gather_single", output, given, self._size)
        flats = [output.detach().contiguous() for output in outputs]

        def finish() -> None:
            for output, flat in zip(outputs, flats, strict=True):
                give(output, flat)

        return self._all_gather("all_gather_single", flats, inputs, outputs, finish, opts)

    def _all_gather(
        self,
        what: str,
        flats: list[torch.Tensor],
        inputs: list[torch.Tensor],
        result: list[torch.Tensor],
        finish: Callable,
        opts: Any,
    ) -> Work:
        sent = [one.detach().contiguous() for one in movable(what, inputs)]
        # the input may be this rank's share of the output, as in FSDP; MPI wants them apart
        sent = [
            one.clone() if one.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() else one
            for one, flat in zip(sent, flats, strict=True)
        ]

        def begin() -> list[MPI.Request]:
            return [self._comm.Iallgather(raw(one), raw(flat)) for one, flat in zip(sent, flats, strict=True)]

        return self._begin(what, begin, result, finish, opts, (sent, flats))

    def gather(self, output_lists: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        (given,) = movable("gather", inputs)
        outputs = output_lists[0] if opts.rootRank == self.rank() else []
        if opts.rootRank == self.rank():
            check_list("gather", outputs, given, self._size)
        sent, flat = given.detach().contiguous(), torch.empty(len(outputs) * given.numel(), dtype=given.dtype)

        def begin() -> MPI.Request:
            return self._comm.Igather(raw(sent), raw(flat) if outputs else None, opts.rootRank)

        return self._begin("gather", begin, outputs, lambda: give_shares(outputs, flat), opts, (sent, flat))

    def scatter(self, outputs: list[torch.Tensor], input_lists: list[list[torch.Tensor]], opts: Any) -> Work:
        (output,) = movable("scatter", outputs)
        is_root = opts.rootRank == self.rank()
        if is_root:
            check_list("scatter", input_lists[0], output, self._size)
        flat = torch.cat([one.detach().reshape(-1) for one in input_lists[0]]) if is_root else None
        got = torch.empty(output.numel(), dtype=output.dtype)

        def begin() -> MPI.Request:
            return self._comm.Iscatter(raw(flat) if is_root else None, raw(got), opts.rootRank)

        return self._begin("scatter", begin, outputs, lambda: give(output, got), opts, (flat, got))

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        check_count("all_to_all", outputs, self._size)
        check_count("all_to_all", inputs, self._size)
        movable("all_to_all", [*outputs, *inputs])
        flat = torch.cat([one.detach().reshape(-1) for one in inputs])
        got = torch.empty(sum(output.numel() for output in outputs), dtype=outputs[0].dtype)
        sizes = [[one.nbytes for one in tensors] for tensors in (inputs, outputs)]

        def finish() -> None:
            give_shares(outputs, got)

        return self._all_to_all("all_to_all", got, flat, sizes, outputs, finish, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Work:
        movable("all_to_all_single", [output, input], contiguous=True)
        sizes = [
            bytes_by_rank(tensor, splits, self._size)
            for tensor, splits in ((input, input_splits), (output, output_splits))
        ]
        return self._all_to_all("all_to_all_single", output, input, sizes, [output], None, opts)

    def _all_to_all(
        self,
        what: str,
        got: torch.Tensor,
        sent: torch.Tensor,
        sizes: list[list[int]],
        result: list[torch.Tensor],
        finish: Callable,
        opts: Any,
    ) -> Work:
        def begin() -> MPI.Request:
            return self._comm.Ialltoallv([raw(sent)[0], sizes[0], MPI.BYTE], [raw(got)[0], sizes[1], MPI.BYTE])

        return self._begin(what, begin, result, finish, opts, (sent, got))

    def barrier(self, opts: Any = None) -> Work:
        return self._begin("barrier", self._comm.Ibarrier, opts=opts)

    # --- messages ---

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        (tensor,) = movable("send", tensors, contiguous=True)
        return self._begin("send", lambda: self._comm.Isend(raw(tensor), dst, check_tag(tag)), tensors)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        return self._recv(tensors, src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        return self._recv(tensors, MPI.ANY_SOURCE, tag)

    def _recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Work:
        (tensor,) = movable("recv", tensors, contiguous=True)

        status = MPI.Status()

        def finish() -> None:
            if (came := status.Get_count(MPI.BYTE)) != tensor.nbytes:
                refuse(f"recv got {came} bytes for a tensor of {tensor.nbytes}; send and recv tensors of one size.")

        return self._begin(
            "recv", lambda: self._comm.Irecv(raw(tensor), src, check_tag(tag)), tensors, finish, status=status
        )

    def _get_backend(self, device: torch.device) -> Group:
        """Itself: since torch 2.15, batch_isend_irecv asks the backend whether it takes a batch in one piece."""
        return self

    # --- the names of torch before 2.13 ---

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- what they share ---

    def _begin(
        self,
        what: str,
        begin: Callable[[], MPI.Request | list[MPI.Request]],
        result: Sequence[torch.Tensor] = (),
        finish: Callable[[], None] | None = None,
        opts: Any = None,
        memory: Any = None,
        status: MPI.Status | None = None,
    ) -> Work:
        """Begin MPI's operation and wrap it.

        `memory` is what MPI uses until it has ended, `status` where it describes the message that came.
        """
        if self._broken:
            refuse(f"{what} cannot begin: the group is broken ({self._broken[0]}). Destroy it and make it again.")
        try:
            requests = begin()
        except MPI.Exception as error:
            raise RuntimeError(f"{what} failed in MPI: {words(error)}") from error
        pending = [(request, status) for request in (requests if isinstance(requests, list) else [requests])]
        work = Work(what, opts, self.timeout, pending, result, finish, self._broken, memory)
        progress().keep(work, is_waited_for=not getattr(opts, "asyncOp", True))
        return work
