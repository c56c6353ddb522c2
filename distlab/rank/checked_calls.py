"""How a call of a process group is made in checked mode.

Runs on every rank, called by hooks.py and cpp.py; checks.py compares the call.
"""

from collections.abc import Callable
from types import FrameType
from typing import Any

from distlab.compat import torch as private
from distlab.rank.log import InCall, Note
from distlab.rank.membership import members_of
from distlab.rank.methods import PLACES
from distlab.rank.plugins import PLUGINS, CheckerPlugin
from distlab.wire.source import runs_learners_code


def posted(work: Any) -> Any:
    """torch's own Work in the place of one that checked mode posts later, which this waits for."""
    # a Deferred has the method; deferred.py imports hooks.py, which imports this file
    if not hasattr(work, "posted"):
        return work
    with InCall(work.note):
        return work.posted()


def is_compared(caller: FrameType) -> bool:
    """Whether checked mode compares the calls that this frame makes of a group.

    It compares those of torch.distributed and of the learner. Others begin in Python what C++
    begins on other ranks, or are C++ itself, which calls a group in Python.
    """
    is_c10ds = caller.f_globals.get("__name__") == private.C10D_MODULE
    return is_c10ds or runs_learners_code(caller)


def check_memory(checker: CheckerPlugin, note: Note, args: tuple[Any, ...]) -> None:
    """Refuse places for the tensors of several ranks that share memory."""
    name = PLACES.get(note.method)
    if name is None or not args:
        return
    places = args[0]
    if places and isinstance(places[0], list):  # only all_to_all gives the list itself
        places = places[0]
    checker.refuse_shared_memory(name, places, members_of(note.group))


def for_cpp(group_name: str, make: Callable[[], Any]) -> Any:
    """Make what DDP calls in the place of a collective that C++ makes on other ranks.

    It is not noted, because it is not noted there.
    """
    if PLUGINS.checker is None:
        return make()
    return PLUGINS.checker.in_turn(group_name, make)
