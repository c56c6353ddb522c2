"""Refuses a call whose peer or root is no rank of its group.

Runs on every rank, called by hooks.py for messages and for collectives with a root.
"""

import torch.distributed as dist

from distlab.arguments import refuse
from distlab.rank.log import Note
from distlab.rank.methods import ROOTED
from distlab.wire.messages import MESSAGE


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
    advice = f"Use a rank below the number of ranks, which is {size} here."
    # torch itself refuses a rank of the world that is not in this group
    if group is not dist.group.WORLD:
        refuse(f"group_{name}", f"a rank of its group, from 0 to {last}", rank, advice)
    if is_message and rank == size:
        advice = "The last rank has no next one: use (rank + 1) % world_size, or skip it."
    elif is_message and rank == -1:
        advice = "Rank 0 has no previous one: use (rank - 1) % world_size, or skip it."
    refuse(name, f"a rank from 0 to {last}", rank, advice)


def _name_of_argument(note: Note) -> str:
    """The name of the argument that says which rank a call is for."""
    if note.op == "batch_isend_irecv":
        return "peer"
    if note.method == "send":
        return "dst"
    return ROOTED.get(note.method, "src")
