"""Checked mode: the ranks compare each call's arguments before its data moves.

They raise if these do not match. Runs on every rank while a cell is checked, called by hooks.py;
functional collectives are not compared. Without it, data that does not match ends in silence or in
a crash: a recv into another type reinterprets bits, an all_reduce of different lengths may
"succeed", a message that is too long aborts its receiver. The ranks meet in the cluster's store,
outside the group: each collective has a key by group and number, each message by its ends, tag and
number, so that unequal numbers of messages do no harm.

What does not block without checks does not block with them: a recv or a collective returns at once,
and if it blocks, torch then waits for it; a thread posts it when the other ranks have said what
they send. Calls in one *lane* (a group's collectives, or the messages from one source with one tag)
are posted in the order in which they were begun.

C++ begins collectives as well, as DDP does for its buckets and buffers, and posts them at once;
they are not compared. gloo matches the calls of a group by their order, which must stay the same on
every rank. So these must be posted before the rank goes on:

- what was begun before in the group in which C++ begins something (`Checker.post`; cpp.py knows
  those functions);
- a call in a backward pass, in a group of DDP: its hooks and its own collectives take turns;
- a call whose Work goes to C++, which waits for it there.

gloo sends a message whose Work was dropped only if its recv was there before. So a recv says in the
store that it has begun, and the Work of a message that it will get is kept when the program drops
it: gloo learns of the recv later.
"""

import contextlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from distlab.compat import torch as private
from distlab.diagnosis.matching import disagreement, misfit
from distlab.errors import ArgumentError, MismatchError
from distlab.rank.deferred import Deferred, Lane, SentMessage, timed_out
from distlab.rank.log import LOG, InCall, Note
from distlab.rank.membership import own_rank
from distlab.rank.memory import indices_that_share
from distlab.rank.methods import ANY_SOURCE, WAITS_FOR_MESSAGE
from distlab.rank.plugins import PLUGINS
from distlab.rank.records import record_of
from distlab.rank.this_rank import THIS_RANK
from distlab.supervised import SupervisedThread
from distlab.wire.codec import from_json, to_json
from distlab.wire.messages import MESSAGE, CallRecord
from distlab.words import rank_list

POLL_SECONDS = 0.0005  # between two looks for what the other ranks have said


def stop_checking() -> None:
    """Stop comparing; what was begun and still waits for the other ranks is made unchecked."""
    checker = PLUGINS.checker
    PLUGINS.checker = None
    if checker is not None:
        checker.close()


def _is_destroyed(group: str) -> bool:
    """Whether the learner has destroyed the group of this name."""
    return group in LOG.members and group not in list(private.GROUP_NAMES.values())


class Checker:
    """What one rank needs to compare its calls with the others'.

    Calls in a lane have numbers, from 1, by which the ranks find each other's words in the store.

    Args:
        token: a name that this cell alone has, the same on every rank.
        host: the host of the cluster's store.
        port: the port of the cluster's store.
        limit: seconds to wait for the store.
    """

    def __init__(self, token: str, host: str, port: int, limit: float):
        self._token = token
        self._store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=limit))
        # the newest number of each lane: of collectives and of messages that were sent; of messages
        # that are received, or will be; and of calls that were compared
        self._begun: Counter[Lane] = Counter()
        self._received: Counter[Lane] = Counter()
        self._compared: Counter[Lane] = Counter()
        self._numbering = threading.RLock()  # two threads of a rank may call at once
        self._waiting: list[Deferred] = []
        self._closing = False
        self._failure: BaseException | None = None  # what has ended the thread that posts
        self._poster = _Poster(self)
        self._poster.start()

    def call(self, note: Note, limit: float, make: Callable[[], Any]) -> Any:
        """Compare the call with the other ranks' and make it; MismatchError if they do not match.

        Args:
            note: the note of the call.
            limit: seconds that it may wait for the other ranks.
            make: makes the call.
        """
        if note.method == "monitored_barrier":
            # it has no arguments that could differ, and a limit of its own
            return self.in_turn(note.group, make)
        record = record_of(note)
        if len(record.members) == 1:
            # there is nobody to compare with; each rank may have a group of its own by this name
            return make()
        own = record.members.index(own_rank())
        if note.method == "send":
            return self._send(note, record, own, make)
        if note.kind == MESSAGE:
            lanes = _lanes_of_recv(note, own, len(record.members))
        else:
            lanes = [Lane(_group_of_lane(note))]
        deferred = Deferred(note, record, lanes, make, limit)
        with self._numbering:  # calls are compared and posted in the order of their numbers
            if self._failure is not None:
                raise _cannot_post(self._failure)
            first, *more = lanes
            if note.kind != MESSAGE:
                self._say(first, own, record)
            elif not more:  # from one source
                turn = self._next_to_receive(first)
                deferred.begun_key = self._key(first, turn, "begun")
                self._store.set(deferred.begun_key, "")
            self._waiting.append(deferred)
        return deferred

    def _send(self, note: Note, record: CallRecord, own: int, make: Callable[[], Any]) -> Any:
        """Say what is sent, and send it: it does not wait for the receiver to say anything."""
        lane = Lane(_group_of_lane(note), own, note.peer, note.tag)
        turn = self._say(lane, own, record)
        work = make()
        if note.op in WAITS_FOR_MESSAGE:
            return work
        return self._sent(note, record, lane, turn, work)

    def _say(self, lane: Lane, own: int, record: CallRecord) -> int:
        """Tell the other ranks of the next call of a lane, in the store; its number in the lane.

        Args:
            own: this rank's number in the group.
        """
        with self._numbering:
            self._begun[lane] += 1
            turn = self._begun[lane]
            self._store.set(self._key(lane, turn, own), to_json(record))
        return turn

    def _next_to_receive(self, lane: Lane) -> int:
        """Count a message of the lane that is or will be received. Runs on: any thread."""
        with self._numbering:
            self._received[lane] += 1
            return self._received[lane]

    def _sent(
        self, note: Note, record: CallRecord, lane: Lane, turn: int, work: Any
    ) -> SentMessage:
        """What a program gets for an isend: when it is dropped, its Work is kept if need be.

        Args:
            turn: its number in the lane.
        """
        begun = self._key(lane, turn, "begun")
        said = self._key(lane, turn, lane.source)
        sent = SentMessage(note, record, [lane], work)
        weakref.finalize(sent, self._keep_if_awaited, note, work, begun, said).atexit = False
        return sent

    def _keep_if_awaited(self, note: Note, work: Any, begun: str, said: str) -> None:
        """Keep the Work of an isend that was dropped, until its group goes, if its recv has begun.

        A receiver first deletes what this rank has said, and then that it has begun.
        """
        if note.done or LOG.closed:
            return
        with contextlib.suppress(RuntimeError):  # the store may be gone
            has_begun = self._store.check([begun])
            if has_begun or not self._store.check([said]):
                LOG.keep_dropped(note, work)

    def in_turn(self, group: str, make: Callable[[], Any]) -> Any:
        """Make a call that is not compared, after what this rank has begun in its group."""
        self.post([group])
        return make()

    def post(self, groups: Collection[str]) -> None:
        """Wait until all collectives that this rank has begun in these groups are posted.

        Their errors are raised where the calls are waited for.
        """
        for call in list(self._waiting):
            if call.is_collective and call.note.group in groups:
                with InCall(call.note):
                    wait([call.posting])

    def close(self) -> None:
        """Post unchecked what waits for the others: they may do their part in a later cell."""
        self._closing = True
        self._poster.join()

    def _key(self, lane: Lane, turn: int, what: int | str) -> str:
        """A key in the store, for one call of a lane.

        Args:
            what: the number in the group of the rank that says something about the call, or a word.
        """
        return f"{self._token}/{lane.path}/{turn}/{what}"

    def _keys(self, call: Deferred, lane: Lane) -> list[str]:
        """The keys of what will be said about a lane's next call.

        Every member says something about a collective, and the source about a message.
        """
        turn = self._compared[lane] + 1
        if not lane.is_of_collectives:
            return [self._key(lane, turn, lane.source)]
        size = len(call.record.members)
        return [self._key(lane, turn, member) for member in range(size)]

    def post_in_turns(self) -> None:
        """Post the calls that wait in their turn, until the cell ends and none is left.

        Runs on: the thread that posts.
        """
        while self._waiting or not self._closing:
            taken: set[Lane] = set()  # by calls that were begun before
            for call in list(self._waiting):
                if self._post_in_turn(call, taken):
                    self._waiting.remove(call)
                    LOG.activity += 1
            time.sleep(POLL_SECONDS)

    def fail(self, error: BaseException) -> None:
        """Have every call fail that waits to be posted, or begins later: nobody would post it.

        Runs on: the thread that posts, which ends.
        """
        with self._numbering:
            self._failure = error
            for call in self._waiting:
                if not call.posting.done():
                    call.posting.set_exception(_cannot_post(error))
            self._waiting.clear()

    def _post_in_turn(self, call: Deferred, taken: set[Lane]) -> bool:
        """Post a call if its turn has come and the others have said what they send.

        Args:
            taken: the lanes in which an earlier call waits; those of this one are added if it does.

        Returns:
            whether it has been posted, or has failed.
        """
        try:
            has_turn = [lane for lane in call.lanes if lane not in taken]
            is_ready = [lane for lane in has_turn if self._store.check(self._keys(call, lane))]
            if is_ready:
                self._compare(call, is_ready[0])
            elif not self._closing:
                if has_turn and call.is_late():
                    raise timed_out(call.limit)
                taken.update(call.lanes)
                return False
            if _is_destroyed(call.record.group):
                raise RuntimeError(
                    "The process group of this call was destroyed before the call could begin."
                )
            work = call.make()
            self._forget_begun(call)
            call.posting.set_result(work)
        except Exception as error:  # the store may be gone, too
            self._forget_begun(call)
            call.posting.set_exception(error)
        return True

    def _forget_begun(self, call: Deferred) -> None:
        """Delete the key of a recv that was posted, or failed: gloo knows of it from now on."""
        if call.begun_key:
            with contextlib.suppress(RuntimeError):  # the store may be gone
                self._store.delete_key(call.begun_key)

    def _compare(self, call: Deferred, lane: Lane) -> None:
        """Raise a MismatchError if a call does not match what the other ranks have said."""
        keys = self._keys(call, lane)
        readers = self._key(lane, self._compared[lane] + 1, "read")
        self._compared[lane] += 1
        if not lane.is_of_collectives and not call.begun_key:  # from any source, which is known now
            self._next_to_receive(lane)
        said = [from_json(text) for text in self._store.multi_get(keys)]
        if lane.is_of_collectives:
            # the last one that reads deletes all
            if self._store.add(readers, 1) == len(keys):
                self._delete([*keys, readers])
            words = disagreement(dict(zip(call.record.members, said, strict=True)))
        else:
            self._delete(keys)
            words = _misfit_of_message(said[0], call.record, lane)
        if words:
            raise MismatchError(words)

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._store.delete_key(key)

    def refuse_shared_memory(
        self, name: str, tensors: Sequence[torch.Tensor], members: Sequence[int]
    ) -> None:
        """Refuse places for what the members of a group send if some are the same memory.

        Args:
            name: the name of the argument.
            tensors: a place for each member.
            members: the ranks of the group.
        """
        shared = indices_that_share(tensors)
        if shared:
            ranks = rank_list([members[index] for index in shared])
            raise ArgumentError(
                f"{name} must be tensors that share no memory, got the same memory for what "
                f"{ranks} send. "
                "Make it with [torch.empty_like(tensor) for _ in range(world_size)]: "
                "[tensor] * world_size is one tensor, which keeps the data of one rank only."
            )


class _Poster(SupervisedThread):
    """The thread that posts the calls of a Checker. If it fails, so do they, and no rank hangs."""

    def __init__(self, checker: Checker) -> None:
        super().__init__("distlab-checked")
        self._checker = checker

    def serve(self) -> None:
        """Post what waits, until the cell ends."""
        self._checker.post_in_turns()

    def on_error(self, error: BaseException) -> None:
        """Have the calls raise that wait for this thread."""
        self._checker.fail(error)

    def on_end(self) -> None:
        """Leave nothing: no call waits any more."""


def _cannot_post(error: BaseException) -> RuntimeError:
    """The error of a call that nobody can post."""
    return RuntimeError(f"Checked mode has failed on this rank: {type(error).__name__}: {error}")


def _lanes_of_recv(note: Note, own: int, size: int) -> list[Lane]:
    """The lanes of a recv: one for its source, or for each other rank if it is from any.

    Args:
        own: this rank's number in the group.
        size: the number of ranks in the group.
    """
    if note.peer == ANY_SOURCE:
        sources = [other for other in range(size) if other != own]
    else:
        sources = [note.peer]
    group = _group_of_lane(note)
    return [Lane(group, source, own, note.tag) for source in sources]


def _group_of_lane(note: Note) -> str:
    """The name of a group, which groups of other worlds of the program may have as well."""
    return f"{THIS_RANK.world}{note.group}"


def _misfit_of_message(sent: CallRecord, received: CallRecord, lane: Lane) -> str:
    """Why the two ends of a message do not match, in a sentence; "" if they do."""
    words = misfit(sent, received)
    if not words:
        return ""
    source = received.members[lane.source]
    destination = received.members[lane.destination]
    ends = f"from rank {source} to rank {destination}"
    return f"The two ends of a message {ends} do not match: {words}."
