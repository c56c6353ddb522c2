"""What may take part in the calls of this rank: checked mode, a recording, a simulated cluster.

Runs on every rank. hooks.py, functional.py, cpp.py and rpc_calls.py ask these for each call; a
module that offers one puts it here, so that the hooks need not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from distlab.wire.messages import Answer, RankStatus

if TYPE_CHECKING:
    from types import FrameType

    import torch

    from distlab.rank.log import Note
    from distlab.wire.recorded import RecordedCall


class CheckerPlugin(Protocol):
    """Compares calls with the other ranks' in checked mode: checks.Checker."""

    def call(self, note: Note, limit: float, make: Callable[[], Any]) -> Any:
        """Compare a call with the other ranks' and make it."""

    def in_turn(self, group: str, make: Callable[[], Any]) -> Any:
        """Make a call that is not compared, after what this rank has begun in its group."""

    def post(self, groups: Collection[str]) -> None:
        """Wait until all collectives that this rank has begun in these groups are posted."""

    def refuse_shared_memory(
        self, name: str, tensors: Sequence[torch.Tensor], members: Sequence[int]
    ) -> None:
        """Refuse a list of tensors of which some are the same memory."""

    def close(self) -> None:
        """Post unchecked what still waits for the other ranks."""


class Tracer(Protocol):
    """Records calls and waits with their times: recording.Recording."""

    def call(self, note: Note, make: Callable[[], Any]) -> Any:
        """Make the call of a note, and record it."""

    def wait(self, note: Note, work: Any, make: Callable[[], Any]) -> Any:
        """Make a wait for the call of a note, and record it."""

    def remote(
        self,
        method: str,
        op: str,
        number: int,
        peer: int | None = None,
        blocking: bool = False,
        note: Note | None = None,
    ) -> RecordedCall:
        """Record a remote call that begins now."""


class WatcherPlugin(Protocol):
    """Notes calls, for the question whether they would work on NCCL: portability.Watcher."""

    def see(self, note: Note, group: Any, args: tuple[Any, ...], caller: FrameType) -> None:
        """Note a call that is about to begin."""


class Simulator(Protocol):
    """Notes waits for Futures on a simulated cluster: simulated.backend.Futures."""

    def on_waited(self, future: Any) -> None:
        """Note that the program has waited for this Future."""

    def then(
        self, future: Any, callback: Callable[[Any], Any], then: Callable[..., torch.Future]
    ) -> torch.Future:
        """Like torch's own `then`, with a note that the callback follows the operation."""


def _send_nothing(message: Answer) -> None:
    """Before the watchdog runs there is nobody who could receive a message."""


def preempt_nothing(status: RankStatus) -> None:
    """An order that arrives after the preemption has ended does nothing."""


@dataclass
class Plugins:
    """What takes part in the calls of this rank now; one object a process, `PLUGINS`.

    Attributes:
        checker: is there while a cell is checked.
        tracer: is there while a trace is recorded.
        watcher: is there while a cell is checked, too.
        simulator: is there once a simulated cluster has been used on this rank.
        send: sends the notebook a message.
        preempt: sends this process SIGTERM, while a preemption is prepared.
    """

    checker: CheckerPlugin | None = None
    tracer: Tracer | None = None
    watcher: WatcherPlugin | None = None
    simulator: Simulator | None = None
    send: Callable[[Answer], None] = _send_nothing
    preempt: Callable[[RankStatus], None] = preempt_nothing


PLUGINS = Plugins()
