"""A backend for torch.distributed whose calls move nothing: they are noted. Runs in the recorder's
process.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distlab.compat import torch as private
from distlab.simulated import backend
from distlab_predict.streams import Timeline

NAME = "predicted"


class Done(dist.Work):
    """A call that is noted; what waits for it on the current stream waits for its node."""

    def __init__(self, timeline: Timeline, place: int, result: Any):
        super().__init__()
        self._timeline, self._place, self._result = timeline, place, result

    def wait(self, timeout: Any = None) -> bool:
        self._timeline.wait(self._timeline.current(), {self._place})
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def result(self) -> Any:
        return self._result

    def get_future(self) -> torch.Future:
        future = torch.futures.Future()
        future.set_result(self._result)
        with contextlib.suppress(RuntimeError):  # no backward pass, at whose end DDP waits
            private.at_end_of_backward(self.wait)
        return future


def install(timeline: Timeline, meet: Callable[[int], None]) -> None:
    """Make "predicted" a backend that notes for a timeline; `meet` hears of each rank at the other
    end of a message.
    """

    class Group(backend.Group):
        def __init__(self, options: Any, _: Any):
            dist.ProcessGroup.__init__(self, options.group_rank, options.group_size)
            self.timeout, self._name = options.timeout, ""
            self._members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))

        def shutdown(self) -> None:
            """Nothing is open."""

        abort = shutdown

        def begin_message(self, name: str, tensors: list[Tensor], peer: int, tag: int) -> Done:
            size, peer = sum(tensor.nbytes for tensor in tensors), self._members[peer]
            meet(peer)
            stream = self._name, name, peer
            return Done(
                timeline, timeline.call(stream, name, self._members, (size,), peer), tensors
            )

        def begin(self, _: str, args: tuple[Any, ...], name: str, sent: tuple[int, ...]) -> Done:
            if name == "all_to_all":  # what stays on this rank comes first
                sent = sent[self.rank() :] + sent[: self.rank()]
            return Done(timeline, timeline.call(self._name, name, self._members, sent), args[0])

    dist.Backend.register_backend(NAME, Group, extended_api=True, devices=["cpu"])
