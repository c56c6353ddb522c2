"""What is noted of a call that communicates.

Runs on every rank. A note holds plain values, never a tensor nor a number of numpy's: they are made
plain when the note is made, on the thread of the call, because the watchdog's thread could only
fail.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank.methods import ANY_SOURCE
from distlab.wire.source import is_learners

_C10D_FILE = dist.distributed_c10d.__file__

# the elements of each rank, or their total where they are split evenly
Split = list[int] | int


class Kind(NamedTuple):
    """What messages are counted by; the peer is a number in the group, or ANY_SOURCE."""

    is_send: bool
    group: str
    peer: int
    tag: int


class Note:
    """One call that communicates, or one wait for other ranks.

    It is made by the thread that calls, on whose stack it finds the learner's lines.

    Args:
        op: the function that the learner called.
        kind: one of the kinds of calls in wire/messages.py.
        ranks: those that it waits for, if it is not a call of a process group.
        words: what else a report says about it: the function of a remote call, the key of a store.
        has_limit: whether it has a time limit of its own, and will end by itself.
        freed_with: the message of the RuntimeError that ends the wait, which is Python code, when
            this rank is freed; "" for a wait in C++, which ends with its connections.

    Attributes:
        readable: makes an error of this call one that a learner can read.
        method: of ProcessGroup; "" if it is not a call of a process group.
        group: the name of its process group.
        peer: the other rank of a message, by its number in the group, or ANY_SOURCE.
        tag: the tag of a message.
        sequence: its number among the collectives of its group, or among the messages of its
            `Kind`; from 1.
        tensors: type and shape of each tensor that all ranks must agree on.
        options: torch's own options of a collective, read only when needed. For the operator of
            broadcast, the root.
        splits: the elements that all_to_all sends to, and gets from, each rank.
        number: the number that this rank takes in a world of the learner's own.
        world_size: how many ranks that world has.
        lines: the learner's, as (file, number, function), innermost first.
        done: whether it was waited for until its end.
        is_followed: whether somebody has seen that it has ended, or has asked for its Future, and
            may wait for that in C++.
    """

    readable: Callable[[RuntimeError], Exception] | None = None
    method: str = ""
    group: str = ""
    peer: int = ANY_SOURCE
    tag: int = 0
    sequence: int = 0
    tensors: Sequence[tuple[Any, tuple[int, ...]]] = ()
    options: Any = None
    splits: tuple[Split, Split] | None = None
    number: int = 0
    world_size: int = 0
    done: bool = False
    is_followed: bool = False

    def __init__(
        self,
        op: str,
        kind: str,
        ranks: Iterable[int] = (),
        words: object = "",
        has_limit: bool = False,
        freed_with: str = "",
    ):
        called, self.lines = caller_of(sys._getframe(1))
        self.op = op or called
        self.kind = kind
        self.words = str(words)
        self.ranks = tuple(map(private.whole, ranks))
        self.has_limit = bool(has_limit)
        self.freed_with = freed_with

    @property
    def message_kind(self) -> Kind:
        """What messages like this one are counted by."""
        return Kind(self.method == "send", self.group, self.peer, self.tag)

    @property
    def is_async(self) -> bool:
        """Whether a collective returns at once."""
        return getattr(self.options, "asyncOp", False)

    @property
    def root(self) -> int:
        """The number in the group of the rank that a collective starts from, or ends at."""
        if isinstance(self.options, int):
            return self.options
        return getattr(self.options, "rootRank", 0)


def caller_of(frame: FrameType | None) -> tuple[str, list[tuple[str, int, str]]]:
    """The function of torch.distributed that was called, and the learner's lines that led to it.

    The function is the outermost one on the stack; "" if there is none.
    """
    op = ""
    lines = []
    while frame is not None:
        code = frame.f_code
        if is_learners(code.co_filename):
            line = (code.co_filename, frame.f_lineno or 0, code.co_name)
            lines.append(line)
        elif lines:
            break
        elif code.co_filename == _C10D_FILE:
            op = code.co_name
        frame = frame.f_back
    return op, lines
