"""A backend for torch.distributed whose calls move nothing: they are noted.

Called by rank_children.py, in the process of a rank that is recorded.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from distlab.compat import torch as private
from distlab.simulated import backend
from distlab_predict import routing, torch_known
from distlab_predict.streams import NodeLog
from distlab_predict.torch_fake import tensors_in

NAME = "predicted"


class Done(dist.Work):
    """The Work of a noted call: a wait for it makes the current stream wait for the call's node."""

    def __init__(self, log: NodeLog, index: int, result: Any):
        super().__init__()
        self._log = log
        self._index = index
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        self._log.wait(self._log.current(), {self._index})
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def result(self) -> Any:
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        # DDP takes futures in a backward pass, and waits for them at its end. Outside of a backward
        # pass torch raises.
        with contextlib.suppress(RuntimeError):
            private.at_end_of_backward(self.synchronize)
        return future


class Group(backend.Group):
    """A group whose calls are noted in a log; unlike a simulated one, it has no group of gloo.

    Args:
        log: of the rank in this process.
        meet: called with each rank at the other end of a message.
        options: torch's, on this rank and its group.
    """

    def __init__(self, log: NodeLog, meet: Callable[[int], None], options: Any, _: Any):
        rank = options.group_rank
        size = options.group_size
        # without the parent's own, which makes a group of gloo
        dist.ProcessGroup.__init__(self, rank, size)  # type: ignore[call-arg]  # no stub says it
        self.timeout = options.timeout
        self._name = ""
        # torch names no members for the group of all ranks
        self._members = tuple(options.global_ranks_in_group) or tuple(range(size))
        self._log = log
        self._meet = meet

    def shutdown(self) -> None:
        """Do nothing, as nothing is open."""

    abort = shutdown

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> NoReturn:
        """Refuse: only data that really travels would show which rank sends first."""
        raise NotImplementedError(
            "here nobody knows which rank would send first: give dist.recv its src"
        )

    def begin_message(self, name: str, tensors: list[Tensor], peer: int, tag: int) -> Done:
        size = sum(tensor.nbytes for tensor in tensors)
        other = self._members[peer]
        self._meet(other)
        if name == "recv":
            torch_known.forget(tensors)
        stream = (self._name, name, other)
        if name == "recv":
            self._log.touch([], tensors)
        else:
            self._log.touch(tensors, [])
        index = self._log.call(stream, name, self._members, (size,), other)
        return Done(self._log, index, tensors)

    def begin_collective(
        self, method: str, args: tuple[Any, ...], name: str, sent: tuple[int, ...]
    ) -> Done:
        if name == "all_to_all":  # what stays on this rank comes first
            sent = _more_of(sent, args)
            sent = sent[self.rank() :] + sent[: self.rank()]
        if method == "allreduce" and isinstance(args[1], dist.AllreduceOptions):
            torch_known.add_up(args[0], args[1].reduceOp, self.size())
        else:
            torch_known.forget(args[0])  # what it writes: nobody knows what the others would send
        routing.receive(name, args, self.rank(), self.size())
        self._log.touch(tensors_in(args), tensors_in(args[0]))
        index = self._log.call(self._name, name, self._members, sent)
        if name == "barrier":  # NCCL's has the processor wait as well
            self._log.read_after({index})
        return Done(self._log, index, args[0])


def _more_of(sent: tuple[int, ...], args: tuple[Any, ...]) -> tuple[int, ...]:
    """The bytes that an all_to_all sends to each rank, or gets, if these are more.

    A link carries both at once.
    """
    written, given, to_get, *_ = args
    if isinstance(given, list):
        got = tuple(tensor.nbytes for tensor in written)
    elif to_get:
        bytes_of_row = written[:1].nbytes
        got = tuple(rows * bytes_of_row for rows in to_get)
    else:
        return sent
    return max(sent, got, key=sum)


def install(log: NodeLog, meet: Callable[[int], None]) -> None:
    """Make "predicted" a backend whose calls are noted in a log.

    Args:
        log: of the rank in this process.
        meet: called with each rank at the other end of a message.
    """
    new_group = functools.partial(Group, log, meet)
    dist.Backend.register_backend(NAME, new_group, extended_api=True, devices=["cpu"])
