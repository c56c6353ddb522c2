"""A backend for torch.distributed in Python, over gloo, that notes what its rank does.

Runs on every rank, and needs no cluster: it also serves a script under torchrun:

    from distlab.simulated import backend, notes
    backend.register()
    dist.init_process_group("simulated")
    notes.use(Network("5 us", "25 GB/s"))
    ...
    notes.settle().clocks       # on every rank: virtual seconds, by rank

Every call goes on to a gloo group, with the same result, and its event goes into the rank's notes
(notes.py). So the program runs as it would on gloo: it waits for nothing else, and fails or
deadlocks in the same way.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Future, Tensor

from distlab.compat import torch as private
from distlab.rank import hooks, table
from distlab.rank.methods import ROOTED
from distlab.rank.plugins import PLUGINS
from distlab.simulated.events import CollectiveCall, PointToPoint, Wait
from distlab.simulated.notes import NOTES, Program
from distlab.simulated.sizes import METHODS, Sizes, bytes_of, root_of

SIMULATED = "simulated"
AFuture = TypeVar("AFuture", bound="Future[Any]")


def register() -> None:
    """Make "simulated" a backend; a second time does nothing. Runs on: every rank."""
    if SIMULATED not in dist.Backend.backend_list:
        dist.Backend.register_backend(SIMULATED, Group, extended_api=True, devices=["cpu"])
        table.install_all()
        hooks.install_patches(hooks.patches_of(Group, Work))
        PLUGINS.simulator = FUTURES


class Work(dist.Work):
    """An operation of gloo; waiting for it is noted, too.

    Args:
        work: the Work of gloo, which does it.
        op: its number in the notes.
        note_sender: for a receive from any rank, notes it once the sender is known, and returns the
            number.
        kept_by: what keeps it until it was waited for, if anything does.
    """

    OVER_GLOO = True

    def __init__(
        self,
        work: dist.Work,
        op: int,
        note_sender: Callable[[int], int] | None = None,
        kept_by: KeptWorks | None = None,
    ):
        super().__init__()
        self._work = work
        self.op = op
        self._noted = False
        self._note_sender = note_sender
        self._kept_by = kept_by

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        done = self._work.wait(timeout) if timeout else self._work.wait()
        self.note_end()
        return done

    def note_end(self) -> None:
        """Note, once, that the program has waited for it."""
        if self._noted:
            return
        self._noted = True
        if self._kept_by is not None:
            self._kept_by.was_waited_for(self)
        if self._note_sender is not None:
            sender = self._source_rank()
            self.op = self._note_sender(sender)
        NOTES.add(Wait(self.op))

    def get_future(self) -> torch.futures.Future[Any]:
        return FUTURES.add(self._work.get_future(), self)

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def result(self) -> list[Tensor]:
        return self._work.result()

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        """The rank that a message from any rank came from; torch's own recv calls this, too."""
        sender = private.sender_of(self._work)
        if sender is None:
            raise RuntimeError("gloo does not know yet from which rank this message is")
        return sender


class KeptWorks:
    """Works of collectives of small tensors, which Python keeps for C++.

    Where DDP counts the ranks that have inputs left, only C++ holds the Work, and would wait
    forever for one whose part in Python is gone. So a Work of up to SMALL_BYTES is kept until it
    was waited for. Then C++ reads its result, so the NEWEST of these are kept for a while.

    There is no limit for those that are waiting: one that is never waited for stays until its group
    ends, as its note does, and is not reported as left.
    """

    SMALL_BYTES = 64
    NEWEST = 32

    def __init__(self) -> None:
        self._waiting: set[Work] = set()
        self._newest: deque[Work] = deque(maxlen=self.NEWEST)

    def add(self, work: Work) -> None:
        """Keep a Work until it was waited for."""
        self._waiting.add(work)

    def was_waited_for(self, work: Work) -> None:
        """Keep a Work no longer than C++ may read its result."""
        self._waiting.discard(work)
        self._newest.append(work)

    def clear(self) -> None:
        """Let all of them go, when their group ends."""
        self._waiting.clear()
        self._newest.clear()


class Futures:
    """Notes waits for torch's Futures, which are made in C++, and what their callbacks do.

    rank/hooks.py calls it.
    """

    def __init__(self) -> None:
        # by Future, the operation or callback whose end it is
        self._ended_by: weakref.WeakKeyDictionary[Future[Any], Work | Program]
        self._ended_by = weakref.WeakKeyDictionary()

    def add(self, future: AFuture, operation: Work | Program) -> AFuture:
        """Return the Future, noted as the end of an operation or a callback.

        If a backward pass is under way, as where DDP takes the Future, it ends with it.
        """
        self._ended_by[future] = operation
        if NOTES.current is NOTES.program:
            # no backward pass: the Future's own wait is the end
            with contextlib.suppress(RuntimeError):
                private.at_end_of_backward(operation.note_end)
        return future

    def on_waited(self, future: Future[Any]) -> None:
        """Note that the program has waited for this Future."""
        if future in self._ended_by:
            self._ended_by[future].note_end()

    def then(
        self,
        future: Future[Any],
        callback: Callable[[Any], Any],
        then: Callable[..., Future[Any]],
    ) -> Future[Any]:
        """Call torch's own `then`, and note that the callback follows the Future's operation."""
        if future not in self._ended_by:
            return then(future, callback)
        operation = self._ended_by[future]
        program = NOTES.add_callback(operation.op)

        def called(future: Future[Any]) -> Any:
            with NOTES.recording_into(program):
                return callback(future)

        return self.add(then(future, called), program)


FUTURES = Futures()


class Group(dist.ProcessGroup):
    """A gloo group whose calls are noted.

    torch makes it, by `init_process_group` and `new_group`, and calls its methods with torch's own
    arguments. It has to know its own name and backend: torch keeps those only for groups in C++.
    """

    OVER_GLOO = True

    def __init__(self, options: Any, _: Any):
        rank = options.group_rank
        size = options.group_size
        self.timeout = options.timeout
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's types have one of two ways
        self._gloo = private.gloo_group(options.store, rank, size, self.timeout)
        self._members = tuple(options.global_ranks_in_group) or tuple(range(size))
        self._count = 0  # of its collectives
        self._name = ""
        self._kept = KeptWorks()

    def getBackendName(self) -> str:
        return SIMULATED

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    group_name = property(getGroupName)

    def _get_backend(self, device: torch.device) -> Any:
        """Return the group itself, as it has no backend apart from it.

        Since torch 2.15, batch_isend_irecv asks the backend whether it takes a batch in one piece.
        """
        return self

    def shutdown(self) -> None:
        self._gloo.shutdown()
        self._kept.clear()

    def abort(self) -> None:
        self._gloo.abort()

    # --- messages ---

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> dist.Work:
        return self.begin_message("send", tensors, dst, tag)

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> dist.Work:
        return self.begin_message("recv", tensors, src, tag)

    def begin_message(self, name: str, tensors: list[Tensor], peer: int, tag: int) -> dist.Work:
        op = self._note_message(name == "send", peer, tensors, tag)
        work = self._call_gloo(name, tensors, peer, tag)
        return Work(work, op)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Receive from the rank that really sends first; in virtual time another may be first."""

        def note_sender(src: int) -> int:
            return self._note_message(False, src, tensors, tag)

        work = self._call_gloo("recv_anysource", tensors, tag)
        return Work(work, 0, note_sender)

    def begin_collective(
        self, method: str, args: tuple[Any, ...], name: str, sent: Sizes
    ) -> dist.Work:
        """Begin a collective of gloo's own, and note it.

        Args:
            method: of ProcessGroup.
            args: of the method.
            name: of the collective, see METHODS.
            sent: see CollectiveCall.
        """
        work = self._call_gloo(method, *args)
        self._count += 1
        event = CollectiveCall(
            op=next(NOTES.numbers),
            name=name,
            group=self._name,
            count=self._count,
            members=self._members,
            root=root_of(args) if name in ROOTED else None,
            sent=sent,
        )
        NOTES.add(event)
        if sum(sent) > KeptWorks.SMALL_BYTES:
            return Work(work, event.op)
        kept = Work(work, event.op, kept_by=self._kept)
        self._kept.add(kept)
        return kept

    def _call_gloo(self, method: str, *args: Any) -> Any:
        """Call the gloo group's own method, without wrappers: these see the call of this group."""
        own = inspect.unwrap(getattr(dist.ProcessGroup, method))
        return own(self._gloo, *args)

    def _note_message(self, sends: bool, peer: int, tensors: list[Tensor], tag: int) -> int:
        """Note the beginning of a send or a receive, and return its number."""
        op = next(NOTES.numbers)
        channel = (self._name, tag)
        event = PointToPoint(op, sends, self._members[peer], bytes_of(tensors), channel)
        NOTES.add(event)
        return op


def _collective(method: str, name: str, sizes: Callable[..., Sizes]) -> Callable[..., dist.Work]:
    """Make a method of Group, for a collective.

    Args:
        method: of ProcessGroup.
        name: of the collective.
        sizes: finds what is sent, from the number of members and the method's arguments.
    """

    def call(self: Group, *args: Any, **named: Any) -> dist.Work:
        args += tuple(named.values())
        sent = sizes(len(self._members), *args)
        return self.begin_collective(method, args, name, sent)

    return call


for _name, _sizes, _methods in METHODS:
    for _method in _methods:
        setattr(Group, _method, _collective(_method, _name, _sizes))
