"""Refuses a call whose peer or root is no rank of its group.

Runs on every rank, called by hooks.py for messages and for collectives with a root.
"""

import torch.distributed as dist

from distlab.arguments import refuse
from distlab.rank.log import Note
from distlab.rank.methods import ROOTED
from distlab.wire.messages import MESSAGE

_BELOW = "Use a rank below the number of ranks, which is {} here."


def refuse_rank_outside(group: dist.ProcessGroup, note: Note) -> None:
    """Refuse a peer or a root outside of the group: gloo would wait for it, or end the process."""
    size = group.size()
    is_message = note.kind == MESSAGE
    rank = note.peer if is_message else note.root
    # torch itself refuses a call of a group that was destroyed
    if not note.group or rank in range(size):
        return
    name = _name_of_argument(note)
    last = size - 1
    advice = _BELOW.format(size)
    # torch itself refuses a rank of the world that is not in this group
    if group is not dist.group.WORLD:
        refuse(f"group_{name}", f"a rank of its group, from 0 to {last}", rank, advice)
    if is_message:
        advice = _advice(rank, group.rank(), size)
    refuse(name, f"a rank from 0 to {last}", rank, advice)


def _advice(peer: int | None, caller: int, size: int) -> str:
    """What to use instead of a peer that is no rank of the world: a neighbour, if it looks so."""
    if peer == size and caller == size - 1:
        return "The last rank has no next one: use (rank + 1) % world_size, or skip it."
    if peer == -1 and caller == 0:
        return "Rank 0 has no previous one: use (rank - 1) % world_size, or skip it."
    if peer in (size, -1):
        return "Ranks are counted from 0, and the last one is world_size - 1."
    return _BELOW.format(size)


def _name_of_argument(note: Note) -> str:
    """The name of the argument that says which rank a call is for."""
    if note.op == "batch_isend_irecv":
        return "peer"
    if note.method == "send":
        return "dst"
    return ROOTED.get(note.method, "src")
