"""Turns what the ranks recorded into a trace: calls with their ends, computation, and which calls
belong together.

Pure functions, called by notebook/tracing.py. Runs on the notebook's kernel.
"""

import re
from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from distlab.traces.events import Collective, Contents, Event, Message, Offset
from distlab.wire.messages import REMOTE, SERVED
from distlab.wire.recorded import GroupKey, Recorded, RecordedCall, TorchRow
from distlab.words import grouped

NEAR = 20e-6  # seconds by which the clocks of the profiler and of the flight recorder may differ
SOON = 200e-6  # seconds within which a call that C++ has begun gives its thread back
JITTER = 1e-6  # seconds by which the clocks of the profiler and of Python may differ
GAP = 200e-6  # seconds of plain Python between two torch calls that count as one computation
BACKWARD = ("autograd::engine::evaluate_function", "torch.distributed.ddp.reducer")
# shown whole, by how they begin
OPAQUE = {"DistributedDataParallel.forward": "forward", "Optimizer.": "optimizer"}
# collectives that return new tensors, as DTensor makes them, and waits for them
FUNCTIONAL = "_c10d_functional::"

Block = tuple[str, list[TorchRow]]  # torch calls of one kind that follow each other
Clock = Callable[[float], float]  # from ns of a rank's clock to seconds of the trace


def read(recorded: Mapping[int, Recorded], offsets: Mapping[int, Offset] | None = None) -> Contents:
    """Put together what each rank recorded, by rank, on the notebook's clock; the first event
    begins at 0.
    """
    ahead = {rank: round(1e9 * offset.seconds) for rank, offset in (offsets or {}).items()}
    starts = [
        i.start - ahead.get(rank, 0)
        for rank, own in recorded.items()
        for i in (*own.rows, *own.calls)
    ]
    zero = min(starts, default=0)
    rows: dict[int, list[TorchRow]] = {}
    calls: list[Event] = []
    computation: list[Event] = []

    for rank, own in recorded.items():

        def clock(time: float, began: float = zero + ahead.get(rank, 0)) -> float:
            return (time - began) / 1e9

        rows[rank] = rows_of(own, clock)
        main = [row for row in rows[rank] if row.thread == 0]
        of_rank = sorted(
            (event_of(rank, call, clock) for call in own.calls), key=lambda event: event.start
        )
        find_ends(
            of_rank, [row for row in rows[rank] if row.name.startswith("gloo:") and row.thread != 0]
        )
        find_waits(of_rank, main)
        calls += of_rank
        computation += computation_of(rank, main, of_rank)
    messages = sorted(
        [*match_messages(calls, recorded), *match_remote(calls)], key=lambda message: message.left
    )
    collectives = match_collectives(calls, recorded)
    last = max((row.end for of_rank in rows.values() for row in of_rank), default=0.0)
    waits = []
    for event in calls:
        if event.end == inf:
            event.end = max(last, event.start)
        waits += [
            replace(event, kind="wait", start=s, end=e, blocking=True) for s, e in event.call.waits
        ]
    events = sorted([*calls, *waits, *computation], key=lambda event: (event.start, event.rank))
    return events, messages, collectives, rows


# --- the calls of one rank ---


def rows_of(recorded: Recorded, clock: Clock) -> list[TorchRow]:
    """The profiler's rows in the order of their starts, outer ones first."""
    rows = [row._replace(start=clock(row.start), end=clock(row.end)) for row in recorded.rows]
    return sorted(rows, key=lambda row: (row.start, -row.end))


def event_of(rank: int, recorded: RecordedCall, clock: Clock) -> Event:
    """A call as an event; its end is infinite if this rank never knew that it was complete."""
    waits = [(clock(start), clock(end)) for start, end in recorded.waits]
    call = replace(
        recorded, start=clock(recorded.start), posted=clock(recorded.posted), waits=waits
    )
    kind, op, tag = (
        {REMOTE: "remote", SERVED: "serve"}.get(call.method, "collective"),
        call.op,
        None,
    )
    if call.method in ("send", "recv", "recv_anysource"):
        kind, tag = call.method[:4], call.tag
        op = kind if call.blocking else f"i{kind}"
    end, size = (
        clock(recorded.end) if recorded.end else inf,
        None if kind in ("remote", "serve") else call.num_bytes,
    )
    what = {
        "group": call.group[2],
        "peer": call.peer,
        "tag": tag,
        "num_bytes": size,
        "failed": call.failed,
    }
    # a function that is served does wait for it
    blocking = call.blocking and not (kind == "remote" and call.elsewhere)
    return Event(rank, kind, op, call.start, end, blocking, call=call, **what)


def family(name: str) -> str:
    """What the names of one collective in ProcessGroup, in the flight recorder and in gloo have in
    common.
    """
    return re.sub(r"^gloo:|_|base|coalesced|single|into|tensor|sparse", "", name)


def find_ends(events: Sequence[Event], rows: Sequence[TorchRow]) -> None:
    """Find when collectives that did not block were complete: gloo's threads take the calls of a
    group in order.

    gloo makes a reduce_scatter from all_reduces; its end is taken to be the end of the first one.
    """
    flying = [event for event in events if event.kind == "collective" and not event.blocking]
    queues = grouped(
        (family(event.call.method).replace("reducescatter", "allreduce"), event) for event in flying
    )
    group_of_thread: dict[int, GroupKey] = {}
    for row in rows:
        queue = queues.get(family(row.name), [])
        begun = (event for event in queue if event.start <= row.start + NEAR)
        event = next(
            (e for e in begun if group_of_thread.get(row.thread, e.call.group) == e.call.group),
            None,
        )
        if event is not None:
            group_of_thread[row.thread] = event.call.group
            event.end = row.end
            queue.remove(event)


def find_waits(events: Sequence[Event], main: Sequence[TorchRow]) -> None:
    """Find torch's own waits for collectives that it called: the main thread did nothing until one
    was complete.

    If it had done nothing since the call, the call itself was blocking. Functional collectives have
    their own wait.
    """
    # in which the main thread was in a torch call, whatever the program named
    outer: list[TorchRow] = []
    for row in main:
        if not row.annotated and (not outer or row.start >= outer[-1].end):
            outer.append(row)
    starts, ends = [row.start for row in outer], [row.end for row in outer]
    functional = [row for row in main if row.name.startswith(FUNCTIONAL)]
    for event in events:
        call = event.call
        if (
            event.kind != "collective"
            or event.blocking
            or call.waits
            or call.elsewhere
            or event.end == inf
        ):
            continue
        before, after = bisect(starts, call.start), bisect_left(starts, event.end - NEAR)
        idle_since = ends[after - 1] if after else inf
        if any(row.start <= call.start <= row.end for row in functional):
            waits = (row for row in functional if row.name.endswith("::wait_tensor"))
            call.waits = [
                (row.start, row.end) for row in waits if row.start <= event.end <= row.end
            ]
        elif before and call.posted < ends[before - 1] and idle_since < event.end:
            event.blocking = idle_since < call.posted + SOON
            if not event.blocking:
                call.waits = [(idle_since, starts[after] if after < len(starts) else event.end)]


# --- the computation of one rank, as a person thinks of it: forward, backward, optimizer ---


def computation_of(rank: int, main: Sequence[TorchRow], calls: Sequence[Event]) -> list[Event]:
    """The computation of the main thread as blocks.

    Args:
        main: the main thread's rows, outer ones before inner ones.
        calls: this rank's calls that communicate; what they do inside is not computation.
    """
    rows = [*outermost(main, calls)]
    held = [event.start for event in calls if event.blocking]
    held += [start for event in calls for start, _ in event.call.waits]
    blocks = merge(rows, kinds_of(rows, main), sorted(held))
    return [
        Event(rank, kind, op_of(kind, block), block[0].start, block[-1].end)
        for kind, block in blocks
    ]


def op_of(kind: str, rows: Sequence[TorchRow]) -> str:
    """The torch call that a block consists of, if it is a single one; else its kind."""
    lengths: Counter[str] = Counter()
    for row in rows:
        lengths[row.name] += row.end - row.start
    name, length = lengths.most_common(1)[0]
    return (
        name.removeprefix("aten::")
        if kind == "compute" and length >= 0.8 * lengths.total()
        else kind
    )


def outermost(main: Sequence[TorchRow], calls: Sequence[Event]) -> Iterator[TorchRow]:
    """The torch calls that are inside no other one, without those that communicate and without
    named ranges.
    """
    inside = [event.call for event in calls if not event.call.elsewhere]
    covered, place = -1.0, 0
    for row in main:
        while place < len(inside) and inside[place].posted < row.start:
            place += 1
        by_python = place < len(inside) and inside[place].start <= row.start + JITTER
        communicates = by_python or row.name.startswith(("c10d::", "gloo:", FUNCTIONAL))
        named = row.annotated and not communicates and not row.name.startswith(tuple(OPAQUE))
        if row.start >= covered and not named:
            covered = row.end
            if not communicates:
                yield row


def kinds_of(rows: Sequence[TorchRow], main: Sequence[TorchRow]) -> Iterator[str]:
    """What each call is: it is forward if its gradient was computed later, as autograd's numbers
    tell.
    """
    backward = {row.number for row in main if row.name.startswith(BACKWARD) and row.number >= 0}
    # a call that leaves nothing for backward has the number of the next one
    last = {
        row.number: place for place, row in enumerate(rows) if not row.name.startswith(BACKWARD)
    }
    for place, row in enumerate(rows):
        followed = row.number in backward and last.get(row.number) == place
        kind = "backward" if row.name.startswith(BACKWARD) else "forward" if followed else "compute"
        yield next((whole for start, whole in OPAQUE.items() if row.name.startswith(start)), kind)


def merge(rows: Sequence[TorchRow], kinds: Iterable[str], held: Sequence[float]) -> list[Block]:
    """Calls of one kind that follow each other closely, as one block; never across a time of
    waiting, in `held`.
    """
    merged: list[Block] = []
    for row, kind in zip(rows, kinds, strict=True):
        last_kind, last = merged[-1] if merged else ("", [row])
        waited = bisect_left(held, last[-1].end) < bisect_left(held, row.start)
        if last_kind == kind and row.start - last[-1].end <= GAP and not waited:
            last.append(row)
        else:
            merged.append((kind, [row]))
    return merged


# --- which calls belong together ---


def match_messages(calls: Sequence[Event], traced: Collection[int]) -> Iterator[Message]:
    """Pair sends with recvs: the n-th send with the n-th recv of the same source, destination, tag
    and group.

    It fills in `ready`, and `end` where only the partner knew it.

    Args:
        calls: of every rank, in the order of their starts.
        traced: the ranks that were recorded.
    """
    halves = [event for event in calls if event.kind in ("send", "recv")]
    # a call that raised took part in nothing: it has no partner
    alike = grouped(
        ((*half.ends, half.tag, half.call.group, half if half.failed else None), half)
        for half in halves
    )
    for (src, dst, tag, *_), both in alike.items():
        known = src is None or {src, dst} <= {*traced}
        sends, recvs = ([half for half in both if half.kind == kind] for kind in ("send", "recv"))
        for send, recv in _pairs(sends, recvs):
            _fill_in(send, recv, known)
            half = send or recv
            yield Message(src, dst, tag, half.group, half.num_bytes, send, recv, known)


def _pairs(sends: list[Event], recvs: list[Event]) -> list[tuple[Event | None, Event | None]]:
    """Pair by number, which also counts messages before the trace; by order if a recv has no
    number.
    """
    counted = all(event.call.sequence for event in recvs)
    first, second = (
        {event.call.sequence if counted else place: event for place, event in enumerate(events)}
        for events in (sends, recvs)
    )
    return [(first.get(number), second.get(number)) for number in sorted({*first, *second})]


def _fill_in(send: Event | None, recv: Event | None, known: bool) -> None:
    if send is None or recv is None:
        (send or recv).ready = inf if known else None
        return
    send.ready = recv.ready = max(send.start, recv.start)
    if not send.blocking and recv.end != inf:
        # wait() may come long after the receiver had it all
        send.end = min(send.end, max(recv.end, send.call.posted))
    if recv.end == inf:
        recv.end = send.end


def match_remote(calls: Sequence[Event]) -> Iterator[Message]:
    """The two messages of each remote call that was traced on both sides; it fills in `ready`, and
    the callee.
    """
    served = {(event.peer, event.call.sequence): event for event in calls if event.kind == "serve"}
    for asked in calls:
        answer = served.get((asked.rank, asked.call.sequence)) if asked.kind == "remote" else None
        if answer is None:
            continue
        ends = {"tag": 0, "group": (), "num_bytes": None}
        asked.peer, there = answer.rank, (asked.start, max(asked.start, answer.start))
        yield Message(asked.rank, answer.rank, send=asked, recv=answer, times=there, **ends)
        if asked.end > asked.start:  # and not only an RRef
            asked.ready, back = answer.end, (answer.end, max(asked.end, answer.end))
            yield Message(answer.rank, asked.rank, send=answer, recv=asked, times=back, **ends)


def match_collectives(calls: Sequence[Event], traced: Collection[int]) -> list[Collective]:
    """The calls that were one collective, in the order in which these began; it fills in `ready`.

    The n-th collective of a group on one rank belongs to the n-th on the others; if their names
    differ, no partner is known.
    """
    own = grouped(
        ((event.rank, event.call.group), event) for event in calls if event.kind == "collective"
    )
    numbered = [(group, *pair) for (_, group), events in own.items() for pair in enumerate(events)]
    together = grouped(
        ((group, number, family(event.call.method)), event) for group, number, event in numbered
    )
    return meet([(group, alike) for ((*_, group), *_), alike in together.items()], traced)


def meet(
    calls: Sequence[tuple[Sequence[int], Sequence[Event]]], traced: Collection[int]
) -> list[Collective]:
    """Each group with the calls that were one collective of it, in the order in which these began."""
    found = []
    for group, alike in calls:
        entered = {event.rank: event.start for event in alike}
        for event in alike:
            # a rank that is not the root needs the root only, the root needs all of them
            needed = {event.peer} if event.peer not in (None, event.rank) else {*group}
            if needed <= entered.keys():
                event.ready = max([event.start, *(entered[rank] for rank in needed)])
            else:
                event.ready = inf if needed <= {*traced} else None
        found.append(Collective(alike[0].op, group, tuple(alike), entered.keys() >= {*group}))
    return sorted(found, key=lambda collective: min(event.start for event in collective.events))
