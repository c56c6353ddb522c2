"""Checked mode: the ranks compare each call's arguments before its data moves, and raise if they do not match.

Runs on every rank while a cell is checked, called by hooks.py; functional collectives are not compared. Without it,
data that does not match ends in silence or in a crash: a recv into another type reinterprets bits, an all_reduce of
different lengths may "succeed", a message that is too long aborts its receiver. The ranks meet in the cluster's store,
outside the group: each collective has a key by group and number, each message by its ends, tag and number, so that
unequal numbers of messages do no harm.

What does not block without checks does not block with them: a recv or a collective returns at once, and if it blocks,
torch then waits for it; a thread posts it when the other ranks have said what they send. Calls in one *lane* (a group's
collectives, or the messages from one source with one tag) are posted in the order in which they were begun.
"""

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
from distlab.wire.codec import from_json, to_json
from distlab.wire.messages import MESSAGE, CallRecord

POLL_SECONDS = 0.0005  # between two looks for what the other ranks have said

Lane = tuple[Any, ...]  # a group alone for its collectives; group, source and destination in it, and tag for messages


def end() -> None:
    """Stop comparing; what was begun and still waits for the other ranks is made unchecked."""
    checker, LOG.checker = LOG.checker, None
    if checker is not None:
        checker.close()


@dataclass(eq=False)
class Deferred:
    """A call that is posted later; used like the Work that it becomes.

    Args:
        note: of the call.
        record: of the call.
        lanes: those of the call; a recv from any rank has several.
        make: makes the call, and returns its Work.
        limit: seconds that a wait may take.
    """

    _note: Note
    record: CallRecord
    lanes: Collection[Lane]
    make: Callable[[], Any]
    _limit: float
    posting: Future[Any] = field(default_factory=Future)  # of the call's own Work

    def posted(self, *timeout: timedelta) -> Any:
        """The call's own Work, waited for."""
        seconds = timeout[0].total_seconds() if timeout else self._limit
        if not wait([self.posting], seconds).done:
            # gloo's own words for it
            raise RuntimeError(f"Timed out waiting {seconds * 1000:.0f}ms for recv operation to complete")
        return self.posting.result()

    def wait(self, *timeout: timedelta) -> bool:
        """As Work.wait."""
        return self.posted(*timeout).wait(*timeout)

    def is_completed(self) -> bool:
        """As Work.is_completed."""
        posted = self.posting.done()
        return posted and (self.posting.exception() is not None or self.posting.result().is_completed())

    def __getattr__(self, name: str) -> Any:
        """Whatever else a Work has; the call must be posted first."""
        with waits(self._note):
            return getattr(self.posted(), name)


hooks.install(hooks.waits_of(Deferred))


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
        self._compared: Counter[Lane] = Counter()
        self._waiting: list[Deferred] = []
        self._closing = False
        self._poster = threading.Thread(target=self._post, name="distlab-checked", daemon=True)
        self._poster.start()

    def call(self, note: Note, make: Callable[[], Any]) -> Any:
        """Compare the call with the other ranks' and make it; MismatchError if they do not match."""
        if note.method == "monitored_barrier":
            return make()  # it has no arguments that could differ, and a limit of its own
        record, is_send = note.record(), note.method == "send"
        own = record.members.index(dist.get_rank())
        lanes: list[Lane] = [(note.group,)]
        if note.kind == MESSAGE:
            others = [note.peer] if note.peer >= 0 else [place for place in range(len(record.members)) if place != own]
            ends = ((own, other) if is_send else (other, own) for other in others)
            lanes = [(note.group, *both, note.tag) for both in ends]
        if is_send or note.kind != MESSAGE:
            self._begun[lanes[0]] += 1
            self._store.set(self._key(lanes[0], self._begun[lanes[0]], own), to_json(record))
        if is_send:
            return make()
        deferred = Deferred(note, record, lanes, make, self._limit)
        self._waiting.append(deferred)
        return deferred

    def close(self) -> None:
        """Post unchecked what still waits for the other ranks: they may do their part in a later cell."""
        self._closing = True
        self._poster.join()

    def _key(self, lane: Lane, turn: int, place: int | str) -> str:
        return "/".join(map(str, (self._token, *lane, turn, place)))

    def _keys(self, call: Deferred, lane: Lane) -> list[str]:
        """The keys of what will be said about a lane's next call: by every member, or by the source of a message."""
        places = lane[1:2] or range(len(call.record.members))
        return [self._key(lane, self._compared[lane] + 1, place) for place in places]

    def _post(self) -> None:
        """Post the calls that wait when their turn has come, until the cell ends and none is left."""
        while self._waiting or not self._closing:
            taken: set[Lane] = set()  # by calls that were begun before
            for call in list(self._waiting):
                try:
                    free = [lane for lane in call.lanes if lane not in taken]
                    ready = [lane for lane in free if self._store.check(self._keys(call, lane))]
                    if not ready and not self._closing:
                        taken.update(call.lanes)
                        continue
                    if ready:
                        self._compare(call, ready[0])
                    call.posting.set_result(call.make())
                except Exception as error:  # the store may be gone, too
                    call.posting.set_exception(error)
                self._waiting.remove(call)
                LOG.total += 1
            time.sleep(POLL_SECONDS)

    def _compare(self, call: Deferred, lane: Lane) -> None:
        """Raise a MismatchError if a call does not match what the other ranks have said."""
        keys, is_collective = self._keys(call, lane), len(lane) == 1
        readers = [self._key(lane, self._compared[lane] + 1, "read")] if is_collective else []
        self._compared[lane] += 1
        said, members = list(map(from_json, self._store.multi_get(keys))), call.record.members
        if not readers or self._store.add(*readers, 1) == len(keys):  # the last one deletes what was written
            for key in (*keys, *readers):
                self._store.delete_key(key)
        if is_collective:
            words = disagreement(dict(zip(members, said, strict=True)))
        elif words := misfit(said[0], call.record):
            _, source, own, _ = lane
            ends = f"from rank {members[source]} to rank {members[own]}"
            words = f"The two ends of a message {ends} do not match: {words}."
        if words:
            raise MismatchError(words)
