"""Calls that completed and did not match: from there on the ranks are out of step.

Runs in the command's process, called by findings.py. NCCL compares nothing: ranks that call
different collectives, or give them other sizes, may both go on, and hang or compute nonsense later.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distlab.diagnosis.matching import disagreement
from distlab.scripts.explaining.groups import Group, Job
from distlab.scripts.explaining.kept import GroupRecord, Kind
from distlab.scripts.explaining.statuses import first_open, history_record, kind_at
from distlab.wire.messages import CallRecord

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
        for rank in rows:
            kind = kind_at(group.records[rank], sequence, job.ranks[rank].kinds)
            if kind is not None:
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
