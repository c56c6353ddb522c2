"""Which of the calls that return at once a cell has left behind, without a wait for their end.

Runs on every rank: log.py asks at the end of each cell in which there were such calls, and
status.py for a report.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from distlab.rank.log import Note

    # the Work of each call, and the number of the cell
    Unwaited = Mapping[Note, tuple[weakref.ref[Any], int]]


def abandoned(unwaited: Unwaited) -> list[Note]:
    """The calls that nobody can wait for any more.

    Args:
        unwaited: the calls that were not waited for, as `Log.unwaited` has them.
    """
    found = []
    for note, (reference, _) in list(unwaited.items()):
        if reference() is None:
            found.append(note)
    return found


def pending(unwaited: Unwaited, current_cell: int) -> list[Note]:
    """The calls of earlier cells that have not ended, and that somebody may still wait for.

    Args:
        unwaited: the calls that were not waited for, as `Log.unwaited` has them.
        current_cell: the number of the cell that runs now, or runs next.
    """
    found = []
    for note, (reference, cell) in list(unwaited.items()):
        work = reference()
        is_of_earlier_cell = cell < current_cell
        if is_of_earlier_cell and work is not None and not _has_ended(work):
            found.append(note)
    return found


def _has_ended(work: Any) -> bool:
    """Whether a Work, or a Future in the place of the Work that it came from, has ended."""
    if isinstance(work, torch.Future):
        return work.done()
    return work.is_completed()
