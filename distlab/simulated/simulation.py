"""Virtual time: when each event of a program happens on machines that a `Network` describes. A pure
function.

The model, after LogGP (Alexandrov, Ionescu, Schauser and Scheiman, 1995):

- A message of m bytes holds a port of its sender's side for m / bandwidth, then its first byte
  travels for `latency`, and it holds a port of its receiver's side for m / bandwidth. The bytes
  flow through both: alone, it takes latency + m / bandwidth in all.
- A port carries one message at a time in each direction; the others wait in the order in which they
  came. Ranks on one host have a port each for messages inside of the host; those between hosts
  share the one port of each host.
- A message may leave when its sender has begun to send it and its receiver to receive it, and the
  sender's operation ends when it has arrived: the latency of a link includes what the two exchange
  before, as formulas of the form alpha + beta m do (rendezvous). With `handshake` they exchange it
  as gloo does: the sender knows of its receiver a latency later, and its operation ends when the
  message has left the port.
- A collective is what its members send, step by step (collectives.py), from the moment at which
  each has begun it, and through the same ports as everything else. Adding costs nothing. Those of
  one group go one after the other on each rank, in the order in which they were called, as on the
  stream of an NCCL communicator; those of other groups overlap.
- Between two operations a rank's clock moves by what it computes. Beginning an operation costs
  nothing; waiting for one moves the clock to its end, if that is later.
- What a Future's callback computes and begins goes on from the end of the Future's operation,
  beside the rank's program and at its full speed, whichever thread it really ran on. What the
  program does in threads of its own is noted as it comes, and what they compute is not: only such a
  program may take another time on another run.

Messages that come to a port at the same moment go in the order of their ranks. Nothing else is left
open, so that the same program gives the same times, to the bit, on every run.
"""

import heapq
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from distlab.simulated import collectives
from distlab.simulated.events import (
    Align,
    Begun,
    Callback,
    Collective,
    Compute,
    Event,
    PointToPoint,
    Wait,
)
from distlab.simulated.network import Network


@dataclass(frozen=True)
class Transfer:
    """One message that went over the network.

    Args:
        src, dst: ranks.
        begin, end: when its first byte leaves the sender, and when its last one arrives.
        send, recv: the operations at its ends, messages or collectives.
    """

    src: int
    dst: int
    num_bytes: int
    begin: float
    end: float
    send: int
    recv: int


@dataclass(frozen=True)
class Span:
    """What a rank did from `begin` to `end`: it computed, or waited for an operation."""

    rank: int
    begin: float
    end: float
    op: int | None


@dataclass(frozen=True)
class Operation:
    """What a rank began, a message or a collective, and when it ended; infinity for never."""

    rank: int
    event: PointToPoint | Collective
    begin: float
    end: float


@dataclass
class Result:
    """What happened.

    Args:
        clocks: of each rank, at its end.
        unfinished: by rank, operations and callbacks that had begun and have not ended (callbacks
            with what is left of them), with the time at which they began, or wait.
        operations, transfers, spans: all of them, in the order of their ends.
    """

    clocks: list[float]
    unfinished: list[list[tuple[Begun, float]]]
    operations: list[Operation] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


def simulate(
    programs: Sequence[Sequence[Event]],
    network: Network,
    clocks: Sequence[float] | None = None,
    unfinished: Sequence[Sequence[tuple[Begun, float]]] = (),
) -> Result:
    """Run the events of each rank, in their order, on the network.

    Args:
        programs: the events, by rank.
        clocks: of each rank at first; 0 for None.
        unfinished: of the result before.

    Returns:
        the result. A rank that waits for something that never ends keeps the clock that it had.
    """
    return _Run(programs, network, clocks or [0.0] * len(programs), unfinished).result()


@dataclass(eq=False)
class _Moment:
    """When something ends, None until it has, and what goes on then."""

    time: float | None = None
    waiting: list[Callable[[float], None]] = field(default_factory=list)

    def come(self, now: float) -> None:
        self.time = now
        for happen in self.waiting:
            happen(now)


LONG_AGO = _Moment(0.0)
# What goes on in virtual time. It yields the moments that it waits for, and gets the time of each,
# which may be past.
Process = Generator[_Moment, float, Any]


class _Half(NamedTuple):
    """A message at its sender, or at its receiver: since when it is begun there, and when it ends
    there.
    """

    message: PointToPoint
    since: float
    end: _Moment


class _Run:
    """The queue of what happens next, the clocks, and what each operation has come to."""

    def __init__(
        self,
        programs: Sequence[Sequence[Event]],
        network: Network,
        clocks: Sequence[float],
        unfinished: Any,
    ):
        self.network, self.found = network, Result(list(clocks), [[] for _ in programs])
        self.clocks, self.free = self.found.clocks, Counter()  # when each port is free
        self.queue: list[tuple[float, Any, int, _Moment]] = []
        self.scheduled = itertools.count()
        self.begun: dict[tuple[int, int], tuple[Begun, float]] = {}  # (rank, op) -> what, and when
        # what is not of these events
        self.ends: defaultdict[tuple[int, int], _Moment] = defaultdict(lambda: LONG_AGO)
        # (rank, op) of a collective -> end of its group's one before
        self.turns: defaultdict[tuple[int, int], _Moment] = defaultdict(lambda: LONG_AGO)
        # (rank, op) of a callback -> what it began last, or follows
        self.latest: dict[tuple[int, int], int] = {}
        # whose other half has not begun
        self.posted: defaultdict[Hashable, deque[_Half]] = defaultdict(deque)
        self.aligning: defaultdict[tuple[int, int], list[tuple[int, _Moment]]] = defaultdict(list)
        for rank, (events, begun) in enumerate(
            itertools.zip_longest(programs, unfinished, fillvalue=())
        ):
            self._expect(rank, [*(event for event, _ in begun), *events])
            for event, since in begun:
                self._at(since, (0, rank)).waiting.append(partial(self._call, rank, event))
            self._go_on(self._program(rank, events, clocks[rank]))

    def result(self) -> Result:
        while self.queue or self.aligning:
            # only now the ranks of the next alignment go on, at the latest clock of all
            if not self.queue:
                for rank, moment in self.aligning.pop(min(self.aligning)):
                    self._at(max(self.clocks), (1, rank), moment)
            now, _, _, moment = heapq.heappop(self.queue)
            moment.come(now)
        # callbacks at last, because what they wait for must have begun before
        ordered = sorted(
            self.begun.items(), key=lambda item: (isinstance(item[1][0], Callback), item[0])
        )
        for (rank, _), begun in ordered:
            self.found.unfinished[rank].append(begun)
        return self.found

    def _at(self, when: float, order: Any, moment: _Moment | None = None) -> _Moment:
        """A moment that comes then; those of the same time come by `order`, then as they were
        scheduled.
        """
        moment = moment or _Moment()
        heapq.heappush(self.queue, (when, order, next(self.scheduled), moment))
        return moment

    def _go_on(self, process: Process, now: float | None = None) -> None:
        """Let a process go on to what it waits for next."""
        try:
            moment = process.send(now)
            while moment.time is not None:
                moment = process.send(moment.time)
        except StopIteration:
            return
        moment.waiting.append(partial(self._go_on, process))

    # --- what a rank does ---

    def _expect(self, rank: int, events: Sequence[Event]) -> None:
        """What the rank begins has an end; collectives of a group take turns as the rank really
        called them.
        """
        operations, before = list(_operations(events)), {}
        self.ends.update(((rank, one.op), _Moment()) for one in operations)
        for one in sorted(
            (one for one in operations if isinstance(one, Collective)), key=lambda one: one.count
        ):
            self.turns[rank, one.op] = before.get(one.group, LONG_AGO)
            before[one.group] = self.ends[rank, one.op]

    def _program(self, rank: int, events: Sequence[Event], now: float) -> Process:
        """A rank's own program, which moves its clock."""
        now = yield self._at(now, (1, rank))
        for event in events:
            self.clocks[rank] = since = now
            now = yield from self._do(rank, event, now)
            if isinstance(event, Compute):
                self.found.spans.append(Span(rank, since, now, None))
            elif isinstance(event, Wait):
                self.found.spans.append(
                    Span(rank, since, now, self.latest.get((rank, event.op), event.op))
                )
        self.clocks[rank] = now

    def _callback(self, rank: int, callback: Callback, now: float) -> Process:
        """What follows the end of an operation, beside the rank's program."""
        key = rank, callback.op
        self.begun[key], self.latest[key] = (callback, now), callback.after
        now = max(now, (yield self.ends[rank, callback.after]))
        for place, event in enumerate(callback.events):
            self.begun[key] = replace(callback, events=callback.events[place:]), now
            if isinstance(event, Begun):
                self.latest[key] = event.op
            now = yield from self._do(rank, event, now)
        self._end(rank, callback.op, now)

    def _do(self, rank: int, event: Event, now: float) -> Process:
        """One event of a rank; returns when it goes on to the next one."""
        if isinstance(event, Compute):
            return (
                yield self._at(
                    now + event.seconds * self.network.stragglers.get(rank, 1.0), (1, rank)
                )
            )
        if isinstance(event, Wait):
            return max(now, (yield self.ends[rank, event.op]))
        if isinstance(event, Align):
            self.aligning[event.number].append((rank, aligned := _Moment()))
            return (yield aligned)
        self._call(rank, event, now)
        return now

    def _call(self, rank: int, event: Begun, now: float) -> None:
        """The rank begins an operation, or a callback that follows one."""
        begin = self._callback if isinstance(event, Callback) else self._operation
        self._go_on(begin(rank, event, now))

    def _operation(self, rank: int, event: PointToPoint | Collective, now: float) -> Process:
        """A message, or all steps of one member of a collective when its turn has come."""
        self.begun[rank, event.op] = event, now
        now = max(now, (yield self.turns[rank, event.op]))
        self.begun[rank, event.op] = event, now
        is_message = isinstance(event, PointToPoint)
        for step in [[event]] if is_message else collectives.messages(event, rank, self.network):
            ends = [self._post(rank, message, now) for message in step]
            for end in ends:
                now = max(now, (yield end))
        self._end(rank, event.op, now)

    def _end(self, rank: int, op: int, now: float) -> None:
        """An operation or a callback has ended."""
        event, begin = self.begun.pop((rank, op))
        if not isinstance(event, Callback):
            self.found.operations.append(Operation(rank, event, begin, now))
        self.ends[rank, op].come(now)

    # --- the network ---

    def _post(self, rank: int, message: PointToPoint, now: float) -> _Moment:
        """A message's send or receive begins; when it ends."""
        src, dst = (rank, message.peer) if message.sends else (message.peer, rank)
        half, waiting = _Half(message, now, _Moment()), self.posted[src, dst, message.channel]
        if waiting and waiting[0].message.sends != message.sends:
            recv, send = sorted((half, waiting.popleft()), key=lambda one: one.message.sends)
            self._go_on(self._travel(src, dst, send, recv))
        else:
            waiting.append(half)
        return half.end

    def _travel(self, src: int, dst: int, send: _Half, recv: _Half) -> Process:
        """A message comes to its sender's port, through it, over the link, and through its
        receiver's port.
        """
        (link, out, into), handshake = self.network.path(src, dst), self.network.handshake
        num_bytes = send.message.num_bytes
        seconds = num_bytes * (1 / link.bandwidth)
        may_leave = max(send.since, recv.since + (link.latency if handshake else 0.0))
        begin = max((yield self._at(may_leave, (4, src, dst))), self.free[out])
        left = self.free[out] = begin + seconds
        if handshake:
            self._at(left, (2, src, dst), send.end)
        arrived = max((yield self._at(begin + link.latency, (3, src, dst))), self.free[into])
        end = self.free[into] = arrived + seconds
        self.found.transfers.append(
            Transfer(src, dst, num_bytes, begin, end, send.message.op, recv.message.op)
        )
        now = yield self._at(end, (2, dst, src))
        recv.end.come(now)
        if not handshake:
            send.end.come(now)


def _operations(events: Sequence[Event]) -> Iterator[Begun]:
    """All operations, including those that callbacks begin."""
    for event in events:
        if isinstance(event, Begun):
            yield event
        if isinstance(event, Callback):
            yield from _operations(event.events)
