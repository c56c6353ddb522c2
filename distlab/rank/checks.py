"""Checked mode: the ranks compare each call's arguments before its data moves, and raise where they do not fit.

Runs on every rank while a cell is checked, called by hooks.py. Data that does not fit ends in silence or in a
crash otherwise: a recv into another type reinterprets bits, an all_reduce of different lengths may "succeed", a message
of another size aborts its receiver. The ranks meet in the cluster's store, outside of the group: each collective has a
key by group and number, each message by its ends, tag and number, so that unequal numbers of messages disturb nothing.

What does not block without checks does not block with them: a recv or a collective returns at once, and torch waits for
it next where it blocks; a thread posts it when the other ranks have said what they send. Calls in one *lane* (a group's
collectives, or the messages from one source with one tag) are posted in the order in which they were begun.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from distlab.diagnosis.proof import disagreement, misfit
from distlab.errors import MismatchError
from distlab.rank import hooks
from distlab.rank.log import LOG, Note, waits
from distlab.wire.messages import MESSAGE, CallRecord, from_json, to_json

POLL_SECONDS = 0.0005  # between two looks for what the other ranks have said

Lane = tuple[Any, ...]  # a group alone for its collectives; group, source and destination in it, and tag for messages


def end() -> None:
    """Compare no more; what was begun and still waits for the other ranks is made unchecked."""
    checker, LOG.checker = LOG.checker, None
    if checker is not None:
        checker.close()


class Checker:
    """What one rank needs to compare its calls with the others'.

    Args:
        token: a name that this cell alone has, the same on every rank. host, port: the cluster's store.
        limit: seconds to wait for the others, as a communication call does.
    """

    def __init__(self, token: str, host: str, port: int, limit: float):
        self._token, self._limit = token, limit
        self._store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=limit))
        self._begun: Counter[Lane] = Counter()  # collectives, and messages that were sent
        self._received: Counter[Lane] = Counter()
        self._waiting: list[Deferred] = []
        self._closing = False
        self._poster = threading.Thread(target=self._post, name="distlab-checked", daemon=True)
        self._poster.start()

    def call(self, note: Note, original: Callable[[], Any]) -> Any:
        """Compare the call with the other ranks' and make it; MismatchError when they do not fit."""
        if note.method == "monitored_barrier":
            return original()  # it has no arguments that could differ, and a limit of its own
        record = note.record()
        own = record.members.index(dist.get_rank())
        if note.method == "send":
            lane = (note.group, own, note.peer, note.tag)
            self._begun[lane] += 1
            self._store.set(self._key(lane, self._begun[lane]), to_json(record))
            return original()
        defer = self._receive if note.kind == MESSAGE else self._collective
        deferred = defer(note, record, own, original)
        self._waiting.append(deferred)
        return deferred

    def agree(self, note: Note) -> None:
        """Wait until every rank has come to a call, which is made on the thread that asked for it."""
        self.call(note, lambda: None).posted()

    def close(self) -> None:
        """Post unchecked what still waits for the other ranks: they may make their part in a later cell."""
        self._closing = True
        self._poster.join()

    def _key(self, lane: Lane, turn: int) -> str:
        return "/".join(map(str, (self._token, *lane, turn)))

    def _collective(self, note: Note, record: CallRecord, own: int, original: Callable[[], Any]) -> Deferred:
        """Post the call when every rank of the group has come to it with fitting arguments."""
        lane, members = (note.group,), record.members
        self._begun[lane] += 1
        key = self._key(lane, self._begun[lane])
        told, left = [f"{key}/{rank}" for rank in members], f"{key}/left"
        self._store.set(told[own], to_json(record))

        def check(_lane: Lane) -> None:
            calls = dict(zip(members, map(from_json, self._store.multi_get(told)), strict=True))
            if self._store.add(left, 1) == len(members):  # the last one deletes all that was written for the call
                for name in (*told, left):
                    self._store.delete_key(name)
            if differ := disagreement(calls):
                raise MismatchError(differ[:1].upper() + differ[1:])

        return Deferred(note, original, self._limit, [lane], lambda _: told, check)

    def _receive(self, note: Note, record: CallRecord, own: int, original: Callable[[], Any]) -> Deferred:
        """Post the recv once its sender has said what it sends."""
        members = record.members
        sources = [note.peer] if note.peer >= 0 else [place for place in range(len(members)) if place != own]
        senders = {(note.group, source, own, note.tag): members[source] for source in sources}

        def next_key(lane: Lane) -> str:
            return self._key(lane, self._received[lane] + 1)

        def check(lane: Lane) -> None:
            key = next_key(lane)
            self._received[lane] += 1
            sent = from_json(self._store.get(key))
            self._store.delete_key(key)
            if differ := misfit(sent, record):
                ends = f"from rank {senders[lane]} to rank {members[own]}"
                raise MismatchError(f"The two ends of a message {ends} do not fit: {differ}.")

        return Deferred(note, original, self._limit, list(senders), lambda lane: [next_key(lane)], check)

    def _post(self) -> None:
        """Post the calls that wait when their turn has come, until the cell ends and none is left."""
        while self._waiting or not self._closing:
            taken: set[Lane] = set()  # by calls that were begun before
            for call in list(self._waiting):
                if call.post(self._store, [lane for lane in call.lanes if lane not in taken], self._closing):
                    self._waiting.remove(call)
                    LOG.total += 1
                else:
                    taken.update(call.lanes)
            time.sleep(POLL_SECONDS)


@dataclass(eq=False)
class Deferred:
    """A call that is posted later; used like the Work that it becomes.

    Args:
        note: of the call. original: makes it, and returns its Work. limit: seconds that a wait may take.
        lanes: those of the call. keys: what the store has, for one of them, when the others have said what they send.
        check: reads it from the store, and raises where that does not fit.
    """

    _note: Note
    _original: Callable[[], Any]
    _limit: float
    lanes: Collection[Lane]
    _keys: Callable[[Lane], list[str]]
    _check: Callable[[Lane], None]
    _posting: Future[Any] = field(default_factory=Future)  # of the call's own Work

    def post(self, store: dist.Store, lanes: Collection[Lane], unchecked: bool) -> bool:
        """Post the call if it fits, or remember the error; False when the others have not said yet what they send.

        Args:
            lanes: those where no other call is before it. unchecked: whether to post it anyway.
        """
        try:
            ready = [lane for lane in lanes if store.check(self._keys(lane))]
            if not ready and not unchecked:
                return False
            if ready:
                self._check(ready[0])
            self._posting.set_result(self._original())
        except Exception as error:  # the store may be gone, too
            self._posting.set_exception(error)
        return True

    def posted(self, *timeout: timedelta) -> Any:
        """The call's own Work, waited for."""
        seconds = timeout[0].total_seconds() if timeout else self._limit
        if not wait([self._posting], seconds).done:
            # gloo's own words for it
            raise RuntimeError(f"Timed out waiting {seconds * 1000:.0f}ms for recv operation to complete")
        return self._posting.result()

    def wait(self, *timeout: timedelta) -> bool:
        """As Work.wait."""
        return self.posted(*timeout).wait(*timeout)

    def is_completed(self) -> bool:
        """As Work.is_completed."""
        posted = self._posting.done()
        return posted and (self._posting.exception() is not None or self._posting.result().is_completed())

    def __getattr__(self, name: str) -> Any:
        """What else a Work has; the call must be posted before."""
        with waits(self._note):
            return getattr(self.posted(), name)


hooks.install(hooks.waits_of(Deferred))
