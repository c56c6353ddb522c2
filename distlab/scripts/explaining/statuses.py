"""What each rank of a job was doing, in the words that a rank of distlab has for it.

Runs in the command's process, called by findings.py, out_of_step.py and words.py. From what the
recorders have kept come statuses with calls, as if the ranks had answered; the proof that is made
of them, and its words, are those of diagnosis/.

Collectives may be asynchronous, so that a rank is many calls ahead of one that has not completed.
What it waits in is the first open call that can never complete, because others have not made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from distlab.diagnosis.proof import need_of
from distlab.scripts.explaining.groups import Group, Job
from distlab.scripts.explaining.kept import Call, GroupRecord, Kind, RankRecord
from distlab.wire.messages import (
    COLLECTIVE,
    COMMUNICATING,
    MESSAGE,
    OUTSIDE,
    UNKNOWN,
    CallRecord,
    MessageCount,
    RankStatus,
)

Wanted = Mapping[str, frozenset[int]]  # of each group, the numbers of calls that are open somewhere


def statuses(job: Job) -> dict[int, RankStatus]:
    """What each rank was doing when its dump was written, by rank."""
    wanted = _wanted(job)
    at_rest = {}
    for rank in range(job.world_size):
        if rank in job.ranks:
            at_rest[rank] = _at_rest(rank, job, wanted)
        else:
            at_rest[rank] = RankStatus(rank, UNKNOWN)
    found = {}
    lacking: dict[tuple[str, int], bool] = {}
    for rank, state in at_rest.items():
        found[rank] = state
        calls = open_calls(rank, job) if rank in job.ranks else []
        for call in calls:
            waiting = replace(state, doing=COMMUNICATING, call=call, lines=call.lines)
            lacks = _lacks_something(waiting, call, at_rest, lacking)
            if lacks or call is calls[0]:
                found[rank] = waiting
            if lacks:
                break
    return found


def _lacks_something(
    waiting: RankStatus,
    call: CallRecord,
    at_rest: Mapping[int, RankStatus],
    lacking: dict[tuple[str, int], bool],
) -> bool:
    """Whether nothing gives a rank what it needs in a call.

    Args:
        waiting: the rank as if it waited in the call.
        call: the call.
        at_rest: all ranks, with what they have called.
        lacking: what was found before of collectives, which are alike for all members.
    """
    if call.kind != COLLECTIVE:
        return need_of(waiting, at_rest) is not None
    key = call.group, call.sequence
    if key not in lacking:
        lacking[key] = need_of(waiting, at_rest) is not None
    return lacking[key]


def _wanted(job: Job) -> Wanted:
    """The numbers of the calls that are open on any rank and that others may wait for, by group."""
    found = {}
    for name, group in job.groups.items():
        numbers = set()
        for record in group.records.values():
            first = first_open(record)
            if first is not None:
                numbers.add(first.sequence)
        found[name] = frozenset(numbers)
    return found


def first_open(record: GroupRecord) -> Call | None:
    """The first collective of a group that has not completed on a rank; None if all have."""
    for call in record.kept:
        if call.is_open:
            return call
    return None


def _at_rest(rank: int, job: Job, wanted: Wanted) -> RankStatus:
    """A rank with all that it has called, as if it were in no call."""
    history: list[CallRecord] = []
    traffic: list[MessageCount] = []
    for group in job.groups.values():
        record = group.records.get(rank)
        if record is not None:
            history += _history(record, group, wanted[group.name], job.ranks[rank].kinds)
            traffic += _traffic(record, group, job.has_forgotten)
    return RankStatus(
        rank,
        OUTSIDE,
        history=tuple(history),
        traffic=tuple(traffic),
    )


def _history(
    record: GroupRecord, group: Group, wanted: Iterable[int], kinds: list[Kind]
) -> list[CallRecord]:
    """The calls of one group that matter: those that any rank waits for, and the newest."""
    calls = {}
    for call in record.kept:
        calls[call.sequence] = record_of(call, group)
    for sequence in wanted:
        kind = kind_at(record, sequence, kinds)
        if sequence not in calls and kind is not None:
            calls[sequence] = _record_of_kind(kind, sequence, group)
    return [calls[sequence] for sequence in sorted(calls)]


def history_record(record: GroupRecord, sequence: int, kind: Kind, group: Group) -> CallRecord:
    """The call with this number, with its lines where it is kept whole."""
    for call in record.kept:
        if call.sequence == sequence:
            return record_of(call, group)
    return _record_of_kind(kind, sequence, group)


def kind_at(record: GroupRecord, sequence: int, kinds: list[Kind]) -> Kind | None:
    """The kind of the call with this number; None if the rank has not made or not kept it."""
    if not record.sequences:
        return None
    index = sequence - record.sequences[0]
    if not 0 <= index < len(record.sequences) or record.sequences[index] != sequence:
        if sequence not in record.sequences:
            return None
        index = record.sequences.index(sequence)
    return kinds[record.kinds[index]]


def record_of(call: Call, group: Group) -> CallRecord:
    """A call as ranks report theirs."""
    line = call.lines[-1] if call.lines else None
    found = replace(
        _record_of_kind(call.kind, call.sequence, group),
        op=call.op,
        lines=call.lines,
        site=None if line is None else (line.file, line.number),
    )
    if call.direction is None:
        return found
    is_send, source, receiver = call.direction
    peer = _rank_in(group, receiver if is_send else source)
    return replace(found, kind=MESSAGE, collective="", is_send=is_send, peer=peer)


def _record_of_kind(kind: Kind, sequence: int, group: Group) -> CallRecord:
    """A collective of which only its kind was kept."""
    return CallRecord(
        op=kind.function,
        kind=COLLECTIVE,
        members=group.members,
        collective=kind.function,
        group=group.name,
        sequence=sequence,
        tensors=kind.tensors,
        sends=() if kind.any_shape else None,
        own_limit=not group.is_numbered,  # nothing is known of who has called it, and who has not
    )


def _rank_in(group: Group, number: int) -> int:
    """The rank with this number in a group."""
    return group.members[number] if number < len(group.members) else number


def _traffic(record: GroupRecord, group: Group, has_forgotten: bool) -> list[MessageCount]:
    """How many messages of each kind a rank has begun in a group.

    Where a recorder has forgotten some, only those count that have not completed: those of one
    sender and receiver complete in order, and both ends together.
    """
    counts = []
    for key, number in record.begun.items():
        is_send, source, receiver = key
        peer = _rank_in(group, receiver if is_send else source)
        counted = number - record.over.get(key, 0) if has_forgotten else number
        counts.append(MessageCount(is_send, group.name, peer, tag=0, sequence=counted))
    return counts


def open_calls(rank: int, job: Job) -> list[CallRecord]:
    """The calls in which a rank may wait, oldest first: of each group the first open collective.

    Those behind it have to wait for it. Messages to different peers do not wait for each other.
    """
    found: list[tuple[int, CallRecord]] = []
    for group in job.groups.values():
        record = group.records.get(rank)
        if record is None:
            continue
        first = first_open(record)
        if first is not None:
            found.append((first.number, record_of(first, group)))
        for message in record.messages:
            if not message.is_open or message.direction is None:
                continue
            call = record_of(message, group)
            if job.has_forgotten:  # numbers begin with the first one that is open, as in `_traffic`
                over = record.over.get(message.direction, 0)
                call = replace(call, sequence=call.sequence - over)
            found.append((message.number, call))
    return [call for _, call in sorted(found, key=lambda item: item[0])]


def last_call(record: RankRecord) -> tuple[GroupRecord, Call] | None:
    """The newest call of a rank, with its group; None if it has made none."""
    newest = None
    for group in record.groups.values():
        for call in (*group.kept[-1:], *group.messages[-1:]):
            if newest is None or call.number > newest[1].number:
                newest = group, call
    return newest
