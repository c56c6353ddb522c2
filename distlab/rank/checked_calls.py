"""How a call of a process group is made in checked mode.

Runs on every rank, called by hooks.py while a cell is checked; checks.py compares the call.
"""

from collections.abc import Callable
from types import FrameType
from typing import Any

from distlab.compat import torch as private
from distlab.rank.log import Note, waits
from distlab.rank.membership import members_of
from distlab.rank.methods import PLACES
from distlab.rank.plugins import PLUGINS
from distlab.wire.source import is_learners


def posted(work: Any) -> Any:
    """torch's own Work in the place of one that checked mode posts later, which this waits for."""
    if not hasattr(work, "posted"):
        return work
    with waits(work.note):
        return work.posted()


def is_compared(caller: FrameType) -> bool:
    """Whether checked mode compares the calls that this frame makes of a group: torch.distributed's
    and the learner's.

    Others begin in Python what C++ begins on other ranks, or are C++ itself, which calls a group in
    Python.
    """
    return caller.f_globals.get("__name__") == private.C10D_MODULE or is_learners(
        caller.f_code.co_filename
    )


def check_memory(note: Note, args: tuple) -> None:
    """Refuse places for the tensors of several ranks that share memory."""
    name = PLACES.get(note.method)
    if name is None or not args:
        return
    given = args[0]
    # a list of a list, but for all_to_all
    places = given[0] if given and isinstance(given[0], list) else given
    PLUGINS.checker.refuse_shared_memory(name, places, members_of(note.group)[0])


def for_cpp(group_name: str, make: Callable[[], Any]) -> Any:
    """Make what DDP calls in the place of a collective that C++ makes on other ranks: not noted, as
    it is not there.
    """
    if PLUGINS.checker is None:
        return make()
    return PLUGINS.checker.in_turn(group_name, make)
