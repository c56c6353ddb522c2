"""Virtual time: when each event of a program happens on machines that a `Network` describes. A pure function.

The model, after LogGP (Alexandrov, Ionescu, Schauser and Scheiman, 1995):

- A message of m bytes holds a port of its sender's side for m / bandwidth, then its first byte travels for `latency`,
  and it holds a port of its receiver's side for m / bandwidth. The bytes flow through both: alone, it takes
  latency + m / bandwidth in all.
- A port carries one message at a time in each direction, the others wait in the order in which they came. Ranks on one
  host have a port each for messages inside of the host; those between hosts share the one port of each host.
- A message may leave when its sender has begun to send it and its receiver to receive it, and the sender's operation
  ends when it has arrived: the latency of a link counts in what the two say to each other before, as formulas of the
  form alpha + beta m do (rendezvous). With `handshake` they say it on the wire, as gloo does: the sender hears of its
  receiver a latency later, and its operation ends when the message has left the port.
- A message of up to `eager` bytes does not wait for its receiver, and its sender's operation ends when it has left.
- A collective is what its members send, step by step (collectives.py), from the moment at which each has begun it, and
  through the same ports as everything else. Adding costs nothing. Those of one group go one after the other on each
  rank, in the order in which they were called, as on the stream of an NCCL communicator; those of other groups overlap.
- Between two operations a rank's clock moves by what it computes. Beginning an operation costs nothing; waiting for one
  moves the clock to its end, if that is later.
- What a Future's callback computes and begins goes on from the end of the Future's operation, beside the rank's program
  and at its full speed, whichever thread it really ran on. What the program does in threads of its own is noted as it
  comes, and what they compute is not: only such a program may take another time on another run.

Messages that come to a port at the same moment go in the order of their ranks. Nothing else is left open, so that the
same program gives the same times, to the bit, on every run.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from distlab.simulated import collectives
from distlab.simulated.events import (
    Align,
    Callback,
    Collective,
    Compute,
    Event,
    Mark,
    Message,
    Operation,
    Result,
    Span,
    Transfer,
    Wait,
)
from distlab.simulated.network import Network


def simulate(
    programs: Sequence[Sequence[Event]],
    network: Network,
    clocks: Sequence[float] | None = None,
    unfinished: Sequence[Sequence[tuple[Event, float]]] = (),
) -> Result:
    """Run the events of each rank, in their order, on the network.

    Args:
        programs: the events, by rank.
        clocks: what they say at first; 0 for None.
        unfinished: of the result before.

    Returns:
        the result. A rank that waits for what never ends keeps the clock that it had.
    """
    return _Run(programs, network, clocks or [0.0] * len(programs), unfinished).result()


class _Run:
    """The queue of what happens next, the clocks, and who waits for what."""

    def __init__(self, programs: Sequence[Sequence[Event]], network: Network, clocks: Sequence[float], unfinished: Any):
        self.network = network
        self.clocks, self.free = list(clocks), Counter()  # when each port is free
        self.marks: list[list[float]] = [[] for _ in programs]
        self.queue: list[tuple[float, Any, int, Callable[[float], None]]] = []
        self.scheduled = 0
        self.begun: dict[tuple[int, int], tuple[Event, float]] = {}  # (rank, op) -> what, and when
        self.callbacks: dict[tuple[int, int], _Program] = {}
        self.ended: dict[tuple[int, int], float] = {}
        self.sleepers: dict[tuple[int, int], list[Callable[[float], None]]] = {}
        self.posted: dict[Hashable, deque[_Exchange]] = {}  # messages of which one side has not begun
        self.turns: dict[tuple[int, int], int | None] = {}  # (rank, op) of a collective -> op of its group's one before
        self.aligning: dict[int, tuple[tuple[int, int], Callable[[float], None]]] = {}  # rank -> (number, what follows)
        self.sent: Counter[tuple[int, int]] = Counter()
        self.operations: list[Operation] = []
        self.transfers: list[Transfer] = []
        self.spans: list[Span] = []
        for rank, events in enumerate(programs):
            begun = unfinished[rank] if unfinished else ()
            self._take_turns(rank, [*(event for event, _ in begun), *events])
            for event, since in begun:
                self.begun[rank, event.op] = (event, since)
                self._at(since, (0, rank), partial(self._call, rank, event))
            self._at(clocks[rank], (1, rank), partial(self._go_on, _Program(rank, deque(events))))

    def result(self) -> Result:
        while self.queue or self._release():
            now, _, _, happen = heapq.heappop(self.queue)
            happen(now)
        unfinished: list[list[tuple[Any, float]]] = [[] for _ in self.clocks]
        for (rank, op), (event, since) in sorted(self.begun.items(), key=lambda item: item[0]):
            if isinstance(event, Callback):
                event = replace(event, events=list(self.callbacks[rank, op].events))
            unfinished[rank].append((event, since))
        return Result(
            tuple(self.clocks),
            tuple(map(tuple, self.marks)),
            tuple(tuple(sorted(begun, key=lambda one: isinstance(one[0], Callback))) for begun in unfinished),
            tuple(self.operations),
            tuple(self.transfers),
            tuple(self.spans),
        )

    def _at(self, when: float, order: Any, happen: Callable[[float], None]) -> None:
        """Let something happen; what happens at the same moment goes by `order`, and then as it was scheduled."""
        self.scheduled += 1
        heapq.heappush(self.queue, (when, order, self.scheduled, happen))

    def _release(self) -> bool:
        """When nothing else can happen, let the ranks of the next alignment go on, at the latest clock of all."""
        if not self.aligning:
            return False
        number, latest = min(number for number, _ in self.aligning.values()), max(self.clocks)
        for rank in sorted(rank for rank, (other, _) in self.aligning.items() if other == number):
            self._at(latest, (1, rank), self.aligning.pop(rank)[1])
        return True

    # --- a rank's program ---

    def _take_turns(self, rank: int, events: Sequence[Event]) -> None:
        """Find which collective of its group each one comes after: the order in which the rank really called them."""
        latest: dict[str, int] = {}
        for one in sorted(_collectives(events), key=lambda one: one.count):
            self.turns[rank, one.op] = latest.get(one.group)
            latest[one.group] = one.op

    def _go_on(self, program: _Program, now: float) -> None:
        """Do what comes next in a program, until it computes or waits."""
        rank, events, callback = program.rank, program.events, program.callback
        if callback is None:
            self.clocks[rank] = now
        while events:
            event = events[0]
            if isinstance(event, Wait) and self._is_coming(rank, event.op):
                if callback is not None:
                    self.begun[rank, callback.op] = (callback, now)
                self._when_ended(rank, event.op, now, partial(self._wake, program, event.op, now))
                return
            events.popleft()
            if isinstance(event, Compute):
                end = now + event.seconds * self.network.stragglers.get(rank, 1.0)
                if callback is None:
                    self.spans.append(Span(rank, now, end, None))
                self._at(end, (1, rank), partial(self._go_on, program))
                return
            if isinstance(event, Align):
                self.aligning[rank] = event.number, partial(self._go_on, program)
                return
            if isinstance(event, Mark):
                self.marks[rank].append(now)
            elif not isinstance(event, Wait):
                program.latest = event.op
                self._call(rank, event, now)
        if callback is not None:
            self._end(rank, callback.op, now)

    def _wake(self, program: _Program, op: int, since: float, now: float) -> None:
        if program.callback is None:
            awaited = self.callbacks.get((program.rank, op))
            self.spans.append(Span(program.rank, since, now, op if awaited is None else awaited.latest))
        self._go_on(program, now)

    def _when_ended(self, rank: int, op: int | None, now: float, happen: Callable[[float], None]) -> None:
        """Do it at the end of an operation or callback, or at once where it has ended or is None."""
        if self._is_coming(rank, op):
            self.sleepers.setdefault((rank, op), []).append(happen)
        else:
            happen(max(now, self.ended.get((rank, op), 0.0)))

    def _is_coming(self, rank: int, op: int | None) -> bool:
        """Whether it has begun and not ended, or is a collective that begins later."""
        return (rank, op) in self.begun or ((rank, op) in self.turns and (rank, op) not in self.ended)

    def _call(self, rank: int, event: Message | Collective | Callback, now: float) -> None:
        """The rank calls an operation, or says what follows one; a collective may have to wait for its turn."""
        self.begun[rank, event.op] = (event, now)
        if isinstance(event, Message):
            self._begin(rank, event, now)
        elif isinstance(event, Collective):
            self._when_ended(rank, self.turns[rank, event.op], now, partial(self._begin, rank, event))
        else:
            program = self.callbacks[rank, event.op] = _Program(rank, deque(event.events), event, event.after)
            self._when_ended(rank, event.after, now, partial(self._go_on, program))

    def _begin(self, rank: int, event: Message | Collective, now: float) -> None:
        self.begun[rank, event.op] = (event, now)
        if isinstance(event, Message):
            self._post(rank, event, "message", now, partial(self._end, rank, event.op))
            return
        me, n = event.members.index(rank), len(event.members)
        steps = collectives.program(event.name, me, n, event.root, event.sent, event.received, self.network)
        self._step(rank, event, iter(steps), now)

    def _step(self, rank: int, event: Collective, steps: Iterator[collectives.Step], now: float) -> None:
        """Begin all messages of one member's next step in a collective; it ends after the last."""
        step = next(steps, None)
        if step is None:
            self._end(rank, event.op, now)
            return
        pending = len(step)

        def one_ended(now: float) -> None:
            nonlocal pending
            pending -= 1
            if pending == 0:
                self._step(rank, event, steps, now)

        me, channel = event.members.index(rank), (f"{event.group} {event.name}", event.count)
        for src, dst, num_bytes in step:
            message = Message(event.op, src == me, event.members[dst if src == me else src], num_bytes, channel)
            self._post(rank, message, event.name, now, one_ended)

    def _end(self, rank: int, op: int, now: float) -> None:
        """An operation or a callback has ended."""
        event, begin = self.begun.pop((rank, op))
        self.ended[rank, op] = now
        if not isinstance(event, Callback):
            self.operations.append(Operation(rank, event, begin, now))
        for happen in self.sleepers.pop((rank, op), ()):
            happen(now)

    # --- the network ---

    def _post(self, rank: int, message: Message, what: str, now: float, end: Callable[[float], None]) -> None:
        """A message's send or receive begins; `end` is called when it has ended."""
        src, dst = (rank, message.peer) if message.sends else (message.peer, rank)
        side = "send" if message.sends else "recv"
        waiting = self.posted.setdefault((src, dst, message.channel), deque())
        exchange = next((other for other in waiting if side not in other.begun), None)
        if exchange is None:
            exchange = _Exchange(src, dst, message.num_bytes, what)
            waiting.append(exchange)
        exchange.begun[side], exchange.ends[side] = now, end
        if what == "message":
            exchange.ops[side] = message.op
        if message.sends:
            exchange.num_bytes = message.num_bytes
        if len(exchange.begun) == 2:
            waiting.remove(exchange)
        if exchange.came is not None:  # an eager one, before its receiver
            end(max(now, exchange.came))
        elif self._is_eager(exchange):
            if message.sends:
                self._leave(exchange, now)
        elif len(exchange.begun) == 2:
            handshake = self.network.path(dst, src).latency if self.network.handshake else 0.0
            self._leave(exchange, max(exchange.begun["send"], exchange.begun["recv"] + handshake))

    def _is_eager(self, exchange: _Exchange) -> bool:
        return 0 < self.network.eager >= exchange.num_bytes and "send" in exchange.begun

    def _leave(self, exchange: _Exchange, when: float) -> None:
        """A message comes to its sender's port, through it, over the link, and through its receiver's port."""
        src, dst = exchange.src, exchange.dst
        path = self.network.path(src, dst)
        seconds = exchange.num_bytes * path.seconds_per_byte
        latency = path.latency * self.network.late(src, dst, self.sent[src, dst])
        self.sent[src, dst] += 1
        ends_when_left = self.network.handshake or self._is_eager(exchange)

        def leave(now: float) -> None:
            begin = max(now, self.free[path.out])
            left = self.free[path.out] = begin + seconds
            if ends_when_left:
                self._at(left, (2, src, dst), exchange.ends["send"])
            self._at(begin + latency, (3, src, dst), lambda now: arrive(now, begin, left))

        def arrive(now: float, begin: float, left: float) -> None:
            first = max(now, self.free[path.into])
            last = self.free[path.into] = first + seconds
            what = (src, dst, exchange.num_bytes, exchange.what)
            self.transfers.append(
                Transfer(*what, begin, left, first, last, exchange.ops.get("send"), exchange.ops.get("recv"))
            )
            self._at(last, (2, dst, src), come)

        def come(now: float) -> None:
            exchange.came = now
            if "recv" in exchange.ends:
                exchange.ends["recv"](now)
            if not ends_when_left:
                exchange.ends["send"](now)

        self._at(when, (4, src, dst), leave)


def _collectives(events: Sequence[Event]) -> Iterator[Collective]:
    """All of them, and those that callbacks begin."""
    for event in events:
        if isinstance(event, Collective):
            yield event
        elif isinstance(event, Callback):
            yield from _collectives(event.events)


@dataclass(eq=False)
class _Program:
    """What is left of what a rank does in one order: its own program, or a callback.

    `latest` is the operation that it began last; of a callback that has begun none, the one that it follows.
    """

    rank: int
    events: deque[Event]
    callback: Callback | None = None
    latest: int | None = None


@dataclass(eq=False)
class _Exchange:
    """One message: when its two sides have begun, what to do at their ends, and when it has come."""

    src: int
    dst: int
    num_bytes: int
    what: str
    begun: dict[str, float] = field(default_factory=dict)
    ends: dict[str, Callable[[float], None]] = field(default_factory=dict)
    ops: dict[str, int] = field(default_factory=dict)
    came: float | None = None
