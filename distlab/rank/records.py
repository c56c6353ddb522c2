"""A call of this rank as another process reads and compares it.

Runs on every rank: status.py makes records of what the rank waits in and remembers, on the
watchdog's thread; checks.py compares them with the other ranks'; raised.py adds one to an error.
"""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from distlab.rank.log import LOG, Note, Split
from distlab.rank.membership import ends_soon_in, is_short, members_of
from distlab.rank.methods import ROOTED
from distlab.wire.messages import COLLECTIVE, CallRecord
from distlab.wire.source import Line, line_of


def record_of(note: Note, with_lines: bool = True) -> CallRecord:
    """The call of a note, without the learner's lines if `with_lines` is False."""
    members = members_of(note.group) if note.method else note.ranks
    # a group that is gone has no members, for whom nobody waits, but its peers still have names
    known_members = members or LOG.members.get(note.group, ())
    rank_at = dict(enumerate(known_members))
    sends = None
    receives = None
    if note.splits is not None:
        to_each, from_each = note.splits
        sends = _by_rank(to_each, len(rank_at))
        receives = _by_rank(from_each, len(rank_at))
    root = None
    if note.method in ROOTED:
        root = rank_at.get(note.root, note.root)
    return CallRecord(
        op=note.op or note.method,
        kind=note.kind,
        members=members,
        own_limit=_ends_by_itself(note),
        collective=note.method if note.kind == COLLECTIVE else "",
        group=note.group,
        sequence=note.sequence,
        tensors=tuple(_plain_type_and_shape(dtype, shape) for dtype, shape in note.tensors),
        site=_file_and_line(note),
        lines=_lines_of_note(note) if with_lines else (),
        is_send=note.method == "send",
        peer=rank_at.get(note.peer),
        tag=note.tag,
        root=root,
        reduce_op=name_of_reduce_op(note),
        sends=sends,
        receives=receives,
        function=note.words,
        number=note.number,
        world_size=note.world_size,
    )


def _ends_by_itself(note: Note) -> bool:
    """Whether a call has a time limit that the learner expects to be reached."""
    if note.has_limit or note.method == "monitored_barrier":  # whose own error says who is missing
        return True
    own_limit = getattr(note.options, "timeout", timedelta(0))
    return is_short(own_limit) or (note.method != "" and ends_soon_in(note.group))


def name_of_reduce_op(note: Note) -> str:
    """The name of the operation by which a collective reduces; "" if it reduces nothing."""
    reduce_op = getattr(note.options, "reduceOp", None)
    return "" if reduce_op is None else reduce_op.op.name


def _lines_of_note(note: Note) -> tuple[Line, ...]:
    """The learner's lines that led to a call, outermost first."""
    return tuple(line_of(*line) for line in reversed(note.lines))


def _plain_type_and_shape(dtype: Any, shape: Iterable[int]) -> tuple[str, tuple[int, ...]]:
    """Plain values for a tensor's type and shape."""
    return str(dtype).removeprefix("torch."), tuple(shape)


def _file_and_line(note: Note) -> tuple[str, int] | None:
    """The name of the file, and the number, of the innermost line of the learner's."""
    if not note.lines:
        return None
    file, number, _ = note.lines[0]
    return os.path.basename(file), number


def _by_rank(split: Split, members: int) -> tuple[int, ...]:
    """Elements by rank, from a list of them or from a total that is split evenly."""
    if isinstance(split, int):
        return (split // max(1, members),) * members
    return tuple(split)
