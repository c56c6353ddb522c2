"""Works of calls that checked mode posts later; to a program they are like any other Work.

Runs on every rank while a cell is checked; checks.py makes them, and posts the calls.
"""

import functools
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank import hooks
from distlab.rank.log import InCall, Note
from distlab.wire.messages import MESSAGE, CallRecord


class Lane(NamedTuple):
    """Calls that are posted in the order in which they were begun.

    The collectives of a group are a lane, and so are the messages from one rank to another one with
    one tag.

    Attributes:
        group: the name of the group.
        source: the rank that sends, by its number in the group; -1 for collectives.
        destination: the rank that receives, likewise.
        tag: the tag of the messages.
    """

    group: str
    source: int = -1
    destination: int = -1
    tag: int = 0

    @property
    def is_of_collectives(self) -> bool:
        """Whether its calls are collectives, and not messages."""
        return self.source < 0

    @property
    def path(self) -> str:
        """What the keys of its calls in the store begin with."""
        if self.is_of_collectives:
            return self.group
        return f"{self.group}/{self.source}/{self.destination}/{self.tag}"


class Deferred(dist.Work):
    """A call that is posted later; used like the Work that it becomes.

    It is a Work itself, because torch asks for its type.

    Args:
        note: the note of the call.
        record: the call as the other ranks read it.
        lanes: the lanes of the call; a recv from any rank has several.
        make: makes the call, and returns its Work.
        limit: seconds that the call may wait for the others: a collective from when its turn has
            come, as gloo counts them, and a recv from the wait for it.

    Attributes:
        posting: the call's own Work, once it has been posted.
        begun_key: the key in the store that says that a recv from one source has begun, until it is
            posted; "" for all others.
    """

    begun_key = ""

    def __init__(
        self,
        note: Note,
        record: CallRecord,
        lanes: Collection[Lane],
        make: Callable[[], Any],
        limit: float,
    ) -> None:
        super().__init__()
        self.note = note
        self.record = record
        self.lanes = lanes
        self.make = make
        self.limit = limit
        self.posting: Future[Any] = Future()
        self._turn_came: float | None = None

    @property
    def is_collective(self) -> bool:
        """Whether it is one, and no message."""
        return self.record.kind != MESSAGE

    def is_late(self) -> bool:
        """Whether a collective, whose turn it is, has waited for the others as long as it may."""
        now = time.monotonic()
        if self._turn_came is None:
            self._turn_came = now
        waited = now - self._turn_came
        return self.is_collective and waited > self.limit

    def posted(self, limit: float | None = None) -> Any:
        """The call's own Work, waited for; MismatchError if the call does not match the others'."""
        if limit is None and not self.is_collective:
            limit = self.limit
        if limit is None:
            wait([self.posting])
        elif not wait([self.posting], limit).done:
            raise timed_out(limit)
        error = self.posting.exception()
        if error is not None:
            # it was raised on the thread that posts, whose lines say nothing
            raise error.with_traceback(None)
        return self.posting.result()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """As Work.wait."""
        if timeout <= timedelta(0):
            return self.posted().wait()
        return self.posted(timeout.total_seconds()).wait(timeout)

    def is_completed(self) -> bool:
        """As Work.is_completed."""
        if not self.posting.done():
            return False
        has_ended = self.posting.exception() is not None or self.posting.result().is_completed()
        self.note.is_followed = self.note.is_followed or has_ended
        return has_ended

    def get_future(self) -> torch.futures.Future:
        """As Work.get_future: it returns at once, whatever the other ranks have begun."""
        # set_exception of torch's Future loses the type of an error. So the value of this one is a
        # function that returns what came of the call, or raises it, and its callback calls that.
        ended: torch.futures.Future[Callable[[], Any]] = torch.futures.Future()

        def on_done(done: torch.futures.Future[Any]) -> None:
            ended.set_result(functools.partial(_value, done, self.note))

        def on_posted(posting: Future[Any]) -> None:
            try:
                future = posting.result().get_future()
            except Exception as error:  # there is none
                ended.set_result(functools.partial(_raise, error, self.note))
            else:
                future.add_done_callback(on_done)

        self.posting.add_done_callback(on_posted)
        return ended.then(lambda ended: ended.value()())


def _value(done: torch.Future, note: Note) -> Any:
    """The value of a Future that is done."""
    try:
        return done.value()
    except Exception as error:
        return _raise(error, note)


def _raise(error: Exception, note: Note) -> NoReturn:
    """Raise it in a Future's callback.

    Its waiters get another RuntimeError from torch, which the note turns into this one.
    """
    note.readable = lambda _: error.with_traceback(None)
    raise error


def timed_out(limit: float) -> RuntimeError:
    """The error of a call that waited too long, in gloo's own words."""
    return RuntimeError(f"Timed out waiting {limit * 1000:.0f}ms for recv operation to complete")


def _delegated(name: str) -> Callable[..., Any]:
    """A method of Work that calls the one of the call's own Work, which must be posted first."""

    def method(self: Deferred, *args: Any, **kwargs: Any) -> Any:
        with InCall(self.note):
            work = self.posted()
        return getattr(work, name)(*args, **kwargs)

    method.__name__ = name
    return method


def _is_delegated(name: str) -> bool:
    """Whether a method of Work is delegated: all that programs call, and Deferred lacks."""
    if name in vars(Deferred) or name == private.OF_CLASS:
        return False
    return name == private.SENDER or not name.startswith("_")


for _name in filter(_is_delegated, {private.SENDER, *vars(dist.Work)}):
    setattr(Deferred, _name, _delegated(_name))

# when this module is imported: before the rank is forked, where the fork server has imported it
hooks.install_patches(hooks.patches_of_work(Deferred))


class SentMessage(Deferred):
    """An isend, which was posted at once.

    When the program drops it, the checker decides whether gloo may drop it, too.
    """

    def __init__(self, note: Note, record: CallRecord, lanes: Collection[Lane], work: Any) -> None:
        super().__init__(note, record, lanes, make=lambda: work, limit=0.0)
        self.posting.set_result(work)
