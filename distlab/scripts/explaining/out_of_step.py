"""Calls that completed and did not match: from there on the ranks are out of step.

Runs in the command's process, called by findings.py and words.py. NCCL compares nothing: ranks that
call different collectives, or give them other sizes, may both go on, and hang or compute nonsense
later.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distlab.diagnosis.matching import disagreement
from distlab.scripts.explaining.groups import Group, Job
from distlab.scripts.explaining.kept import GroupRecord, Kind
from distlab.scripts.explaining.reading_again import call_again
from distlab.scripts.explaining.statuses import first_open, history_record, kind_at, record_of
from distlab.wire.messages import CallRecord
from distlab.words import grouped

MOST_KINDS = 4  # of calls under one number that are shown
MOST_TRIED = 1000  # calls of one group that differ in something, until one of them is a mismatch


@dataclass(frozen=True)
class Mismatch:
    """A collective that the ranks of a group have called differently.

    Attributes:
        group: the group.
        sequence: its number.
        calls: what each rank has called, by rank.
        words: how they differ, in a sentence.
    """

    group: Group
    sequence: int
    calls: Mapping[int, CallRecord]
    words: str


@dataclass(frozen=True)
class Called:
    """What some ranks have called alike under one number.

    Attributes:
        ranks: the ranks.
        call: the call of the first of them, with its lines.
    """

    ranks: list[int]
    call: CallRecord


def called_at(group: Group, sequence: int, job: Job) -> list[Called]:
    """What the ranks of a group have called under this number, the first MOST_KINDS of them.

    Lines are those of the first rank that has called it; for a call that is long over, its dump is
    read again.
    """
    found = []
    for ranks in list(grouped(_by_kind(group, sequence, job)).values())[:MOST_KINDS]:
        record = group.records[ranks[0]]
        kept = [call for call in record.kept if call.sequence == sequence]
        call = kept[0] if kept else call_again(job.ranks[ranks[0]], record.name, sequence)
        if call is not None:
            found.append(Called(ranks, record_of(call, group)))
    return found


def _by_kind(group: Group, sequence: int, job: Job) -> Iterator[tuple[Kind, int]]:
    """The kind of each rank's call with this number, and the rank."""
    for rank, record in group.records.items():
        kind = kind_at(record, sequence, job.ranks[rank].kinds)
        if kind is not None:
            yield kind, rank


def mismatches(job: Job) -> list[Mismatch]:
    """The first mismatch of each group among calls that have completed everywhere."""
    places: dict[Kind, int] = {}
    found = []
    for group in job.groups.values():
        if not group.is_numbered or len(group.records) < 2:
            continue
        mismatch = _first_mismatch(group, job, places)
        if mismatch is not None:
            found.append(mismatch)
    return found


def _first_mismatch(group: Group, job: Job, places: dict[Kind, int]) -> Mismatch | None:
    """The first mismatch of one group; None if there is none.

    Args:
        group: the group.
        job: the job.
        places: a number for each kind of call of the job, to which new ones are added.
    """
    rows = {}
    for rank, record in group.records.items():
        if record.sequences:
            numbers = [places.setdefault(kind, len(places)) for kind in job.ranks[rank].kinds]
            rows[rank] = array("q", map(numbers.__getitem__, record.kinds))
    for tried, sequence in enumerate(_differing(group, rows)):
        if tried == MOST_TRIED:
            break
        calls = {}
        for kind, rank in _by_kind(group, sequence, job):
            calls[rank] = history_record(group.records[rank], sequence, kind, group)
        words = disagreement(calls)
        if words:
            return Mismatch(group, sequence, calls, words)
    return None


def _differing(group: Group, rows: Mapping[int, array[int]]) -> Iterator[int]:
    """The numbers of calls that have completed and are not of one kind on all ranks, in order.

    Args:
        group: the group.
        rows: the kinds of each rank's calls, by rank.
    """
    if not rows:
        return
    begin = max(group.records[rank].sequences[0] for rank in rows)
    end = min(_end_of_completed(group.records[rank]) for rank in rows)
    pieces = []
    for rank, row in rows.items():
        record = group.records[rank]
        first = record.sequences[0]
        if record.sequences[-1] - first + 1 != len(record.sequences):
            return  # some are not there, as in a dump of active calls only
        pieces.append(row[begin - first : end - first])
    if len({piece.tobytes() for piece in pieces}) <= 1:
        return
    for index, kinds in enumerate(zip(*pieces, strict=True)):
        if len(set(kinds)) > 1:
            yield begin + index


def _end_of_completed(record: GroupRecord) -> int:
    """The number after the calls of a rank that have completed."""
    first = first_open(record)
    return record.sequences[-1] + 1 if first is None else first.sequence
