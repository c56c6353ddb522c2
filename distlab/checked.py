"""Checked mode: the ranks compare each call's arguments before its data moves, and raise where they do not fit.

Runs on every rank while a cell is checked, called by calls.py. Data that does not fit ends in silence or in a crash
otherwise: a recv into another type reinterprets bits, an all_reduce of different lengths may "succeed", a message of
another size aborts its receiver. The ranks meet in the cluster's store, outside of the group: each collective has a key
by group and number, each message by its ends, tag and number, so that unequal numbers of messages disturb nothing.
What does not block without checks does not block with them: it is posted in the background, by poster.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from distlab import state
from distlab.agreement import disagreement, misfit
from distlab.errors import MismatchError
from distlab.notes import POINT_TO_POINT, Note
from distlab.poster import Deferred, Poster


class Checker:
    """What one rank needs to compare its calls with the others'.

    Args:
        token: a name that this cell alone has, the same on every rank. host, port: the cluster's store.
        limit: seconds to wait for the others, as a communication call does.
    """

    def __init__(self, token: str, host: str, port: int, limit: float):
        self._token, self._address, self._limit = token, (host, port), limit
        self._store = self._connect()
        self._turns: Counter[str] = Counter()  # collectives by group
        self._sent: Counter[Any] = Counter()  # messages by lane: group, source and destination in it, and tag
        self._received: Counter[Any] = Counter()
        self._poster: Poster | None = None

    def _connect(self) -> Any:
        return dist.TCPStore(*self._address, is_master=False, timeout=timedelta(seconds=self._limit))

    def call(self, note: Note, original: Callable[[], Any]) -> Any:
        """Compare the call with the other ranks' and make it; MismatchError when they do not fit."""
        if note.method == "monitored_barrier":
            return original()  # it has no arguments that could differ, and a limit of its own
        plain = state.describe(note)
        if note.method not in POINT_TO_POINT:
            return self._collective(note, plain, original)
        own = plain["members"].index(dist.get_rank())
        if note.method != "send":
            return self._receive(note, plain, own, original)
        lane = (note.group, own, note.peer, note.tag)
        self._sent[lane] += 1
        self._store.set(self._key("message", *lane, self._sent[lane]), json.dumps(plain))
        return original()

    def close(self) -> None:
        """Post unchecked what still waits for the other ranks: they may make their part in a later cell."""
        if self._poster is not None:
            self._poster.finish()

    def _key(self, *names: Any) -> str:
        return "/".join(map(str, (self._token, *names)))

    # --- collectives ---

    def _collective(self, note: Note, plain: dict[str, Any], original: Callable[[], Any]) -> Any:
        """Make the call when every rank of the group has come to it with fitting arguments."""
        self._turns[note.group] += 1
        key, members, lane = self._key(note.group, self._turns[note.group]), plain["members"], (note.group,)
        self._store.set(f"{key}/{dist.get_rank()}", json.dumps(plain))
        if self._store.add(f"{key}/arrived", 1) == len(members):
            told = self._store.multi_get([f"{key}/{rank}" for rank in members])
            verdict = disagreement({rank: json.loads(text) for rank, text in zip(members, told, strict=True)})
            self._store.set(f"{key}/verdict", verdict or "ok")
        if not note.is_async and not (self._poster and self._poster.busy(lane)):
            _obey(_verdict(self._store, key, members))
            return original()

        def ready(store: Any, lanes: Iterable[Any]) -> Callable[[], None] | None:
            if lane in lanes and store.check([f"{key}/verdict"]):
                return lambda: _obey(_verdict(store, key, members))
            return None

        return self._later(note, original, [lane], ready)

    # --- messages ---

    def _receive(self, note: Note, plain: dict[str, Any], own: int, original: Callable[[], Any]) -> Deferred:
        """Post the recv once its sender has said what it sends; a blocking recv waits for it next."""
        members = plain["members"]
        sources = [note.peer] if note.peer >= 0 else [place for place in range(len(members)) if place != own]
        wanted = {(note.group, source, own, note.tag): members[source] for source in sources}

        def ready(store: Any, lanes: Iterable[Any]) -> Callable[[], None] | None:
            for lane in lanes:
                key = self._key("message", *lane, self._received[lane] + 1)
                if store.check([key]):
                    return lambda lane=lane, key=key: take(store, lane, key)
            return None

        def take(store: Any, lane: Any, key: str) -> None:
            self._received[lane] += 1
            sent = json.loads(store.get(key))
            store.delete_key(key)
            if differ := misfit(sent, plain):
                ends = f"from rank {wanted[lane]} to rank {members[own]}"
                raise MismatchError(f"The two ends of a message {ends} do not fit: {differ}.")

        return self._later(note, original, list(wanted), ready)

    def _later(self, note: Note, original: Callable[[], Any], lanes: list[Any], ready: Callable[..., Any]) -> Deferred:
        if self._poster is None:
            self._poster = Poster(self._connect())
        call = Deferred(note, original, self._limit)
        self._poster.add(call, lanes, ready)
        return call


def _verdict(store: Any, key: str, members: list[int]) -> str:
    """The verdict on a collective, waited for; the last rank that has read it deletes all that was written for it."""
    verdict = store.get(f"{key}/verdict").decode()
    if store.add(f"{key}/left", 1) == len(members):
        for name in (*members, "arrived", "verdict", "left"):
            store.delete_key(f"{key}/{name}")
    return verdict


def _obey(verdict: str) -> None:
    if verdict != "ok":
        raise MismatchError(verdict[:1].upper() + verdict[1:])
