"""What the notebook may call on a rank.

It joins and rebuilds the group, runs a function, defines and reads variables, and says which names
there are. Runs on every rank. The notebook's kernel imports it as well, to send these functions,
and has no torch: what needs torch is imported inside of them.
"""

import linecache
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from distlab.compat.ipython import current_shell
from distlab.wire import pickling
from distlab.wire.messages import Failure
from distlab.wire.namespace import bind_rank_globals, namespace_of_cells
from distlab.wire.pickling import Reply
from distlab.wire.portability import Seen
from distlab.wire.preemption import Order
from distlab.wire.program import Program
from distlab.wire.recorded import Recorded
from distlab.wire.rendezvous import Joined, Meeting
from distlab.wire.spawned import Spawned


def join(rank: int, meeting: Meeting, is_new: bool, whole: bool) -> Joined | Failure:
    """Join the group that meets at `meeting`; see group.py for the arguments.

    Runs on: every rank.

    Args:
        is_new: whether this process joins a group for the first time.

    Returns:
        a Failure, with the learner's lines, if this rank could not join.
    """
    from distlab.rank import group
    from distlab.rank.raised import describe_failure

    try:
        if is_new:
            return group.become_rank(rank, meeting)
        return group.rebuild(rank, meeting, whole)
    except Exception as error:
        return replace(describe_failure(error), rank=rank)


def settle_orders() -> None:
    """Return once every order to the watchdog has been carried out.

    A reply means that this rank is idle.
    """
    from distlab.rank import watchdog

    watcher = watchdog.running()
    if watcher is not None:  # without one no order comes any more
        watcher.settle()


def begin_checks(token: str, host: str, port: int, limit: float) -> None:
    """Compare the arguments of calls between the ranks from now on.

    Args:
        token, host, port, limit: what checks.Checker takes.
    """
    from distlab.rank import portability
    from distlab.rank.checks import Checker
    from distlab.rank.plugins import PLUGINS

    PLUGINS.checker = Checker(token, host, port, limit)
    portability.begin_watching()


def end_checks() -> Seen | None:
    """Stop comparing; what was begun and still waits for the other ranks is made unchecked.

    Returns:
        what was called meanwhile; None if that was not watched, as after a new start of the rank.
    """
    from distlab.rank import checks, portability
    from distlab.rank.log import LOG

    LOG.passes.count_with_last_cell(LOG.cells)
    checks.stop_checking()
    return portability.end_watching()


def set_pauses(limit: float, after_failure: bool, lines: dict[str, list[str]]) -> None:
    """Prepare a cell in which a person may stop this rank at a breakpoint, or undo that.

    Args:
        limit: seconds that calls of its groups wait from now on.
        after_failure: whether a cell that raises opens the debugger.
        lines: of files that only the notebook has.
    """
    from distlab.compat.torch import set_timeouts
    from distlab.debugger.console import CONSOLE
    from distlab.rank.log import LOG

    LOG.passes.count_with_last_cell(LOG.cells)
    CONSOLE.after_failure = after_failure
    for name, text in lines.items():
        linecache.cache[name] = (1, None, text, name)
    set_timeouts(timedelta(seconds=limit))


def start_recording() -> None:
    """Begin to record what this rank does; see recording.begin_recording. Runs on: a rank."""
    from distlab.rank import recording

    recording.begin_recording()


def stop_recording() -> Recorded:
    """End the recording and return it; see recording.end_recording. Runs on: a rank."""
    from distlab.rank import recording

    return recording.end_recording()


def begin_preemption(orders: Sequence[Order]) -> None:
    """Prepare this rank for a preemption; see preempting.begin. Runs on: every rank."""
    from distlab.rank import preempting

    preempting.begin(orders)


def end_preemption() -> int:
    """Undo that, and return how many optimizer steps the rank has finished. Runs on: every rank."""
    from distlab.rank import preempting

    return preempting.end()


def call_function(header: bytes, buffers: list[Any]) -> list[Any]:
    """Call the function in the payload as fn(rank, world_size, *args, **kwargs).

    Names that the function uses come from the notebook; those that the notebook does not have, from
    this rank.

    Runs on: a rank.

    Returns:
        [Reply, *buffers of the value].
    """
    from distlab.rank import clashes
    from distlab.rank.around_cells import end_abandoned_children, restore_builtins
    from distlab.rank.raised import describe_failure
    from distlab.rank.this_rank import THIS_RANK

    failure = None  # and not returned at once: the error's frames must be gone at the collection
    try:
        fn, args, kwargs = pickling.loads(header, buffers)
        found = clashes.clashes_of(fn)
        bind_rank_globals(fn)
        value = fn(THIS_RANK.rank, THIS_RANK.world_size, *args, **kwargs)
    except BaseException as error:
        restore_builtins()
        failure = describe_failure(error)
    if failure is not None:
        end_abandoned_children()
        return [Reply(failure=failure)]
    restore_builtins()
    reply, *packed = _packed(value, type(value).__qualname__)
    return [replace(reply, clashes=found), *packed]


def run_program(rank: int, world_size: int, program: Program) -> None:
    """Run a person's own program; see program.run_program. Runs on: every rank."""
    from distlab.rank import program as of_rank

    of_rank.run_program(rank, world_size, program)


def run_spawned(rank: int, world_size: int, spawned: Spawned) -> None:
    """Call a function for `distlab.spawn`; see spawned.run_spawned. Runs on: every rank."""
    from distlab.rank import spawned as of_rank

    of_rank.run_spawned(rank, world_size, spawned)


def push(header: bytes, buffers: list[Any]) -> list[Any]:
    """Define the names of the payload, a dict, on this rank.

    Returns:
        [Reply].
    """
    from distlab.rank import clashes

    values = pickling.loads(header, buffers)
    namespace_of_cells().update(values)
    clashes.note_pushed(values)
    return [Reply()]


def pull(names: list[str]) -> list[Any]:
    """The values of names, a list, as [Reply, *buffers].

    The failure in the Reply is a NameError if one is not defined.
    """
    from distlab.rank.raised import describe_failure

    namespace = namespace_of_cells()
    for name in names:
        if name not in namespace:
            error = NameError(f"name {name!r} is not defined")
            return [Reply(failure=describe_failure(error))]
    return _packed([namespace[name] for name in names], ", ".join(names))


def _packed(value: Any, what: str) -> list[Any]:
    """A value as [Reply, *buffers]; a Reply that says why if it cannot be pickled.

    Args:
        what: its name in that.
    """
    try:
        header, buffers = pickling.dumps(value)
    except Exception as error:  # whatever the value's own pickling raises
        from distlab.rank.this_rank import THIS_RANK

        words = f"The value of rank {THIS_RANK.rank}, {what}, cannot be sent to the notebook"
        why = f"{type(error).__name__}: {error}"
        advice = (
            "Return plain values or tensors, or leave it on the rank: a %%px cell can use it there."
        )
        return [Reply(unsendable=f"{words} ({why}). {advice}")]
    return [Reply(header), *buffers]


def last_failure() -> Failure | None:
    """What the last cell that failed on this rank raised; None if none has.

    Asked for when a cell has just failed.
    """
    from distlab.rank.raised import describe_failure

    error = getattr(sys, "last_value", None)
    if error is None:
        return None
    return describe_failure(error)


def names_below(rank: int, world_size: int, path: str) -> list[str]:
    """The names of the attributes of an object, such as "dist" or "model.fc".

    For "", those of the cells. Empty if there is no such object. Rank and world size are what every
    function is called with.
    """
    if not path:
        return list(namespace_of_cells())
    value = _value_of(path)
    if value is None:
        return []
    return dir(value)


def keys_of(rank: int, world_size: int, path: str) -> list[str]:
    """The keys that are texts of a dict, such as "config" or "model.options".

    Empty if there is no such dict.
    """
    value = _value_of(path)
    if not isinstance(value, dict):
        return []
    return [key for key in value if isinstance(key, str)]


def _value_of(path: str) -> Any:
    """An object of the cells by its dotted name; None if there is none."""
    first, *rest = path.split(".")
    value = namespace_of_cells().get(first)
    for name in rest:
        value = getattr(value, name, None)
    return value


def help_for(rank: int, world_size: int, name: str, detail: int) -> dict[str, Any] | None:
    """What IPython says about an object, as a MIME bundle; None if there is no such name."""
    try:
        return current_shell().object_inspect_mime(name, detail_level=detail)
    except KeyError:
        return None
