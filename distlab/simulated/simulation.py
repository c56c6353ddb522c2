"""Virtual time: when each event of a program happens on machines that a `Network` describes.

`simulate` is a pure function. notes.py calls it on the first rank of a simulated group, and
checking/judging.py where a verdict is found: on the notebook's kernel, or in a judge's process.

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
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from distlab.simulated import collectives
from distlab.simulated.events import (
    Align,
    Begun,
    Callback,
    CollectiveCall,
    Compute,
    NotedEvent,
    PointToPoint,
    Wait,
    all_operations,
)
from distlab.simulated.network import Network
from distlab.simulated.results import Operation, Result, Span, Transfer, Unfinished

# What happens first at one time. Where these are the same too, ranks go in their order.
LEFT_OVER = 0  # an operation that began before this simulation begins again
PROGRAM = 1  # a rank goes on
AT_END = 2  # an operation ends
AT_RECEIVER = 3  # a message comes to the port of its receiver
AT_SENDER = 4  # a message comes to the port of its sender
MomentOrder = tuple[int, ...]  # one of these, and then ranks


def simulate(
    programs: Sequence[Sequence[NotedEvent]],
    network: Network,
    clocks: Sequence[float] | None = None,
    unfinished: Sequence[Unfinished] = (),
) -> Result:
    """Run the events of each rank, in their order, on the network.

    Args:
        programs: the events, by rank.
        clocks: of each rank at first; 0 for None.
        unfinished: of the result before.

    Returns:
        the result. A rank that waits for something that never ends keeps the clock that it had.
    """
    if clocks is None:
        clocks = [0.0] * len(programs)
    run = _Run(network, clocks)
    for rank, events in enumerate(programs):
        left_over = unfinished[rank] if unfinished else []
        run.start(rank, events, left_over)
    return run.to_the_end()


@dataclass(eq=False)
class _Moment:
    """When something ends.

    Attributes:
        time: when it has ended; None until then.
        waiting: what goes on then, called with the time.
    """

    time: float | None = None
    waiting: list[Callable[[float], None]] = field(default_factory=list)

    def come(self, now: float) -> None:
        """End now, and let go on what waits for it."""
        self.time = now
        for happen in self.waiting:
            happen(now)


LONG_AGO = _Moment(0.0)
# What goes on in virtual time. It yields the moments that it waits for, and gets the time of each,
# which may be past.
Process = Generator[_Moment, float, None]
# A part of a process; it returns when the process goes on.
ProcessPart = Generator[_Moment, float, float]
OperationKey = tuple[int, int]  # (rank, op): an operation or a callback


class _Half(NamedTuple):
    """A message at its sender or at its receiver.

    Attributes:
        message: the send, or the receive.
        since: when it began.
        end: when it ends.
    """

    message: PointToPoint
    since: float
    end: _Moment


class _Run:
    """One simulation: what happens next, the clocks, and what has become of each operation.

    Attributes:
        found: the result so far.
        clocks: of the ranks; they are those of the result.
        queue: what happens next, as (time, order among what happens then, number, moment).
        begun: what has begun and has not ended, and the time of its beginning.
        ends: when operations and callbacks end. Those that are not of this simulation have ended
            long ago.
        turns: for a collective, the end of the one before in its group; of the first, long ago.
        latest: for a callback, the operation that it began last, or the one that it follows.
        free: when each port is free.
        posted: by route and channel, sends or receives without their other half; a route is
            (source, destination).
        aligning: by number of an alignment, the ranks that have come to it.
    """

    def __init__(self, network: Network, clocks: Sequence[float]):
        self.network = network
        none_unfinished: list[Unfinished] = [[] for _ in clocks]
        self.found = Result(list(clocks), none_unfinished)
        self.clocks = self.found.clocks
        self.queue: list[tuple[float, MomentOrder, int, _Moment]] = []
        self.scheduled = itertools.count()
        self.begun: dict[OperationKey, tuple[Begun, float]] = {}
        self.ends: defaultdict[OperationKey, _Moment] = defaultdict(lambda: LONG_AGO)
        self.turns: defaultdict[OperationKey, _Moment] = defaultdict(lambda: LONG_AGO)
        self.latest: dict[OperationKey, int] = {}
        self.free: defaultdict[Hashable, float] = defaultdict(float)
        self.posted: defaultdict[Hashable, deque[_Half]] = defaultdict(deque)
        self.aligning: defaultdict[tuple[int, int], list[tuple[int, _Moment]]] = defaultdict(list)

    def start(self, rank: int, events: Sequence[NotedEvent], left_over: Unfinished) -> None:
        """Begin a rank's program, and again what it had begun before."""
        begun_before = [event for event, _ in left_over]
        self._expect(rank, [*begun_before, *events])
        for event, since in left_over:
            moment = self._at(since, (LEFT_OVER, rank))
            moment.waiting.append(partial(self._begin, rank, event))
        self._spawn(self._program(rank, events, self.clocks[rank]))

    def to_the_end(self) -> Result:
        """Let everything happen that can, and return the result."""
        while self.queue or self.aligning:
            if not self.queue:
                self._align()
            now, _, _, moment = heapq.heappop(self.queue)
            moment.come(now)
        self._keep_what_is_unfinished()
        return self.found

    def _keep_what_is_unfinished(self) -> None:
        """Put what has begun and not ended into the result, from which the next simulation begins.

        Callbacks come last, because what they wait for must have begun before.
        """
        operations = []
        callbacks = []
        for key, (event, _) in self.begun.items():
            if isinstance(event, Callback):
                callbacks.append(key)
            else:
                operations.append(key)
        for key in sorted(operations) + sorted(callbacks):
            rank, _ = key
            self.found.unfinished[rank].append(self.begun[key])

    def _align(self) -> None:
        """Let the ranks of the next alignment go on, at the latest clock of all.

        Only when nothing else can happen: then everything before the alignment has ended.
        """
        latest = max(self.clocks)
        first_number = min(self.aligning)
        for rank, moment in self.aligning.pop(first_number):
            self._schedule(moment, latest, (PROGRAM, rank))

    def _at(self, when: float, order: MomentOrder) -> _Moment:
        """Make a new moment that comes at that time."""
        moment = _Moment()
        self._schedule(moment, when, order)
        return moment

    def _schedule(self, moment: _Moment, when: float, order: MomentOrder) -> None:
        """Let a moment come; those of one time come by `order`, then as they were scheduled."""
        heapq.heappush(self.queue, (when, order, next(self.scheduled), moment))

    def _spawn(self, process: Process) -> None:
        """Start a process, which runs until it waits for a moment that has not come."""
        try:
            moment = next(process)
        except StopIteration:
            return
        self._go_on(process, moment)

    def _go_on(self, process: Process, moment: _Moment) -> None:
        """Let a process go on until it waits for a moment that has not come."""
        try:
            while moment.time is not None:
                moment = process.send(moment.time)
        except StopIteration:
            return
        moment.waiting.append(lambda _: self._go_on(process, moment))

    # --- what a rank does ---

    def _expect(self, rank: int, events: Sequence[NotedEvent]) -> None:
        """Make a moment for the end of each operation, and let collectives take turns.

        Each waits for the one before in its group, in the order in which the rank really called
        them.
        """
        called = []
        for operation in all_operations(events):
            self.ends[rank, operation.op] = _Moment()
            if isinstance(operation, CollectiveCall):
                called.append(operation)
        called.sort(key=lambda collective: collective.count)
        end_of_latest: dict[str, _Moment] = {}  # by group
        for collective in called:
            key = rank, collective.op
            self.turns[key] = end_of_latest.get(collective.group, LONG_AGO)
            end_of_latest[collective.group] = self.ends[key]

    def _program(self, rank: int, events: Sequence[NotedEvent], begin: float) -> Process:
        """Go through a rank's own program, which moves its clock."""
        now = yield self._at(begin, (PROGRAM, rank))
        begun_just_before = None
        for event in events:
            since = now
            self.clocks[rank] = since
            now = yield from self._do(rank, event, now)
            if isinstance(event, Compute):
                self.found.spans.append(Span(rank, since, now, None))
            elif isinstance(event, Wait):
                # for a callback, it is the operation that the callback is at
                op = self.latest.get((rank, event.op), event.op)
                at_once = event.op == begun_just_before
                self.found.spans.append(Span(rank, since, now, op, at_once))
            begun_just_before = None
            if isinstance(event, (PointToPoint, CollectiveCall)):
                begun_just_before = event.op
        self.clocks[rank] = now

    def _callback(self, rank: int, callback: Callback, now: float) -> Process:
        """Go through what follows the end of an operation, beside the rank's program."""
        key = rank, callback.op
        self.begun[key] = callback, now
        self.latest[key] = callback.after
        end = yield self.ends[rank, callback.after]
        now = max(now, end)
        for place, event in enumerate(callback.events):
            what_is_left = callback.events[place:]
            self.begun[key] = replace(callback, events=what_is_left), now
            if isinstance(event, Begun):
                self.latest[key] = event.op
            now = yield from self._do(rank, event, now)
        self._end(rank, callback.op, now)

    def _do(self, rank: int, event: NotedEvent, now: float) -> ProcessPart:
        """Go through one event of a rank, and return when it goes on to the next one."""
        if isinstance(event, Compute):
            slowness = self.network.stragglers.get(rank, 1.0)
            seconds = event.seconds * slowness
            end = yield self._at(now + seconds, (PROGRAM, rank))
            return end
        if isinstance(event, Wait):
            end = yield self.ends[rank, event.op]
            return max(now, end)
        if isinstance(event, Align):
            aligned = _Moment()
            self.aligning[event.number].append((rank, aligned))
            end = yield aligned
            return end
        self._begin(rank, event, now)
        return now

    def _begin(self, rank: int, event: Begun, now: float) -> None:
        """Begin an operation of a rank, or a callback that follows one."""
        if isinstance(event, Callback):
            self._spawn(self._callback(rank, event, now))
        else:
            self._spawn(self._operation(rank, event, now))

    def _operation(self, rank: int, event: PointToPoint | CollectiveCall, now: float) -> Process:
        """Go through a message, or when its turn has come, one member's steps of a collective."""
        self.begun[rank, event.op] = event, now
        turn = yield self.turns[rank, event.op]
        now = max(now, turn)
        self.begun[rank, event.op] = event, now
        for step in self._steps(rank, event):
            ends = [self._post(rank, message, now) for message in step]
            for end in ends:
                ended = yield end
                now = max(now, ended)
        self._end(rank, event.op, now)

    def _steps(
        self, rank: int, event: PointToPoint | CollectiveCall
    ) -> Iterator[Sequence[PointToPoint]]:
        """What an operation sends and receives, step by step."""
        if isinstance(event, PointToPoint):
            yield [event]
        else:
            yield from collectives.messages(event, rank, self.network)

    def _end(self, rank: int, op: int, now: float) -> None:
        """Note that an operation or a callback has ended."""
        event, begin = self.begun.pop((rank, op))
        if not isinstance(event, Callback):
            self.found.operations.append(Operation(rank, event, begin, now))
        self.ends[rank, op].come(now)

    # --- the network ---

    def _post(self, rank: int, message: PointToPoint, now: float) -> _Moment:
        """Begin the send or the receive of a message, and return the moment of its end."""
        half = _Half(message, now, _Moment())
        route = (rank, message.peer) if message.sends else (message.peer, rank)
        waiting = self.posted[route, message.channel]
        if not waiting or waiting[0].message.sends == message.sends:
            waiting.append(half)
            return half.end
        other = waiting.popleft()
        src, dst = route
        if message.sends:
            self._spawn(self._travel(src, dst, send=half, recv=other))
        else:
            self._spawn(self._travel(src, dst, send=other, recv=half))
        return half.end

    def _travel(self, src: int, dst: int, send: _Half, recv: _Half) -> Process:
        """Send a message through its sender's port, over the link, and its receiver's port."""
        link, out, into = self.network.path(src, dst)
        handshake = self.network.handshake
        num_bytes = send.message.num_bytes
        seconds = num_bytes * (1 / link.bandwidth)

        receiver_known = recv.since
        if handshake:
            receiver_known += link.latency
        both_known = max(send.since, receiver_known)
        ready = yield self._at(both_known, (AT_SENDER, src, dst))
        begin = max(ready, self.free[out])
        left = begin + seconds
        self.free[out] = left
        if handshake:
            self._schedule(send.end, left, (AT_END, src, dst))

        arrived = yield self._at(begin + link.latency, (AT_RECEIVER, src, dst))
        end = max(arrived, self.free[into]) + seconds
        self.free[into] = end
        transfer = Transfer(
            src=src,
            dst=dst,
            num_bytes=num_bytes,
            begin=begin,
            end=end,
            send=send.message.op,
            recv=recv.message.op,
        )
        self.found.transfers.append(transfer)
        now = yield self._at(end, (AT_END, dst, src))
        recv.end.come(now)
        if not handshake:
            send.end.come(now)
