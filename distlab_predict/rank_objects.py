"""Python objects that ranks send each other: settings, a tokenizer, the shapes that stages ask for.

Tensors have no data here, so a collective of tensors is only noted. Objects arrive: the child that
records a rank sends them to its parent, which keeps them for the children of the other ranks, and
starts the rank that one of them waits for. Called by rank_children.py and recordings.py.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Key = tuple[Hashable, ...]  # the call, its ranks, and how many were like it before


class NotSent(RuntimeError):
    """The rank that has an object did not send it."""


@dataclass(frozen=True)
class Given:
    """A child sends objects: of which call they are, and how they are pickled."""

    key: Key
    data: bytes


@dataclass(frozen=True)
class Wanted:
    """A child waits for the objects of a call, which the rank `source` has."""

    key: Key
    source: int


# --- in the parent ---


class Waiting:
    """The objects of a run, and the children that wait for some."""

    def __init__(self) -> None:
        self._given: dict[Key, bytes] = {}
        self._waiting: list[tuple[Connection, Wanted]] = []

    def __len__(self) -> int:
        """How many children wait."""
        return len(self._waiting)

    def give(self, given: Given) -> None:
        """Keep objects, and hand them to the children that wait for them."""
        self._given[given.key] = given.data
        self._answer(lambda wanted: wanted.key == given.key, given.data)

    def want(self, child: Connection, wanted: Wanted) -> bool:
        """Have a child get objects, now or later; whether it gets them now."""
        self._waiting.append((child, wanted))
        data = self._given.get(wanted.key)
        if data is not None:
            self._answer(lambda other: other is wanted, data)
        return data is not None

    def end(self, source: int) -> None:
        """Tell all that wait for a rank that it has ended."""
        self._answer(lambda wanted: wanted.source == source, None)

    def give_up(self) -> None:
        """Tell all that nobody will send what they wait for."""
        self._answer(lambda _: True, None)

    def _answer(self, is_answered: Callable[[Wanted], bool], data: bytes | None) -> None:
        """Answer some of those that wait."""
        still = []
        for child, wanted in self._waiting:
            if is_answered(wanted):
                child.send(data)
            else:
                still.append((child, wanted))
        self._waiting = still


# --- in a child ---


class Objects:
    """The calls of torch.distributed that send objects, for a rank that is recorded.

    Each also notes a call of tensors that are as large as the pickled objects.

    Args:
        rank: which one.
        parent: where objects go, and come from.
    """

    def __init__(self, rank: int, parent: Connection) -> None:
        self._rank = rank
        self._parent = parent
        self._calls: Counter[Key] = Counter()

    @property
    def number(self) -> int:
        """How many calls there were."""
        return sum(self._calls.values())

    def functions(self) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
        """torch's functions, and those that take their places."""
        yield dist.broadcast_object_list, self.broadcast
        yield dist.scatter_object_list, self.scatter
        yield dist.send_object_list, self.send
        yield dist.recv_object_list, self.recv
        yield dist.all_gather_object, self.all_gather
        yield dist.gather_object, self.gather

    def broadcast(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        """Have the objects of one rank be those of all."""
        members = _members(group)
        source = _end(group, src, group_src)
        objects, size = self._from(source, ("broadcast", *members), object_list)
        object_list[:] = objects
        dist.broadcast(_of(size), source, group)

    def scatter(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        """Take the object that one rank has for this one."""
        members = _members(group)
        source = _end(group, src, group_src)
        objects, size = self._from(source, ("scatter", *members), scatter_object_input_list)
        scatter_object_output_list[0] = objects[members.index(self._rank)]
        part = _of(size // len(members))
        parts = [part] * len(members) if source == self._rank else None
        dist.scatter(part, parts, source, group)

    def send(
        self,
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        device: Any = None,
        group_dst: int | None = None,
        use_batch: bool = False,
    ) -> None:
        """Send objects to a rank."""
        to = _end(group, dst, group_dst)
        size = self._give(("message", self._rank, to), object_list)
        dist.send(_of(size), to, group)

    def recv(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        use_batch: bool = False,
    ) -> int:
        """Receive objects from a rank; returns which one."""
        if src is None and group_src is None:
            raise NotImplementedError(
                "here nobody knows which rank would send first: give recv_object_list its src"
            )
        source = _end(group, src, group_src)
        objects, size = self._take(("message", source, self._rank), source)
        object_list[:] = objects
        dist.recv(_of(size), source, group)
        return source

    def all_gather(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        """Have each rank's object be like this one's: most ranks are not recorded."""
        data = pickle.dumps(obj)
        object_list[:] = [pickle.loads(data) for _ in object_list]
        part = _of(len(data))
        dist.all_gather([part] * len(object_list), part, group)

    def gather(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        """Likewise, on one rank."""
        data = pickle.dumps(obj)
        part = _of(len(data))
        to = _end(group, dst, group_dst)
        parts = None
        if to == self._rank and object_gather_list is not None:
            object_gather_list[:] = [pickle.loads(data) for _ in object_gather_list]
            parts = [part] * len(object_gather_list)
        dist.gather(part, parts, to, group)

    def _from(self, source: int, call: Key, objects: Any) -> tuple[Any, int]:
        """The objects of a rank and their size: given, if it is this one, or else taken."""
        if source == self._rank:
            return objects, self._give((*call, source), objects)
        return self._take((*call, source), source)

    def _give(self, call: Key, objects: Any) -> int:
        """Send objects to the parent; returns their size in bytes."""
        data = pickle.dumps(objects)
        self._parent.send(Given(self._next(call), data))
        return len(data)

    def _take(self, call: Key, source: int) -> tuple[Any, int]:
        """Wait for the objects of a rank; also returns their size in bytes."""
        self._parent.send(Wanted(self._next(call), source))
        data = self._parent.recv()
        if data is None:
            raise NotSent(
                f"rank {source} did not send the objects that rank {self._rank} waits for"
            )
        return pickle.loads(data), len(data)

    def _next(self, call: Key) -> Key:
        """The key of a call, which differs from those of the calls before."""
        self._calls[call] += 1
        return (*call, self._calls[call])


def _members(group: Any) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD)


def _end(group: Any, rank: int | None, in_group: int | None) -> int:
    """The rank in the world at the other end of a call, as torch is given it; by default 0."""
    if in_group is not None:
        return _members(group)[in_group]
    return rank or 0


def _of(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)
