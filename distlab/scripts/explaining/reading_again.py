"""A call that was not kept whole: its dump is read again, for its lines.

Runs in the command's process, called by out_of_step.py. That is for few calls, because it takes as
long as the first time.
"""

from __future__ import annotations

from distlab.errors import DataError
from distlab.scripts.explaining.kept import Call, RankRecord
from distlab.scripts.explaining.reading import dumps_in
from distlab.scripts.explaining.recording import recorded


def call_again(record: RankRecord, group: str, sequence: int) -> Call | None:
    """A collective of a rank, with its lines.

    Args:
        record: what is kept of the rank's dump.
        group: torch's name of the group.
        sequence: the number of the collective.

    Returns:
        The call; None if it cannot be read any more.
    """
    try:
        with open(record.path, "rb") as file:
            dumps = dumps_in(file.read())
    except (OSError, DataError):
        return None
    for dump in dumps:
        if dump.rank != record.rank:
            continue
        again = recorded(record.path, dump.rank, dump.content, also=sequence)
        for call in again.groups[group].kept:
            if call.sequence == sequence:
                return call
    return None
