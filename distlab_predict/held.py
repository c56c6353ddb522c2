"""What a rank's memory holds, as memory.py notes it and memory_shown.py shows it.

Plain data, which both processes use; needs no torch.
"""

from dataclasses import dataclass
from typing import NamedTuple

FRAGMENTATION = "fragmentation"  # what torch reserves on a GPU and no storage uses


class Made(NamedTuple):
    """Storages that a line of the program has made, and that are there at the peak.

    Attributes:
        line: "train.py:12"; "" if no line of the program made them.
        kind: what they are, as of `Recording.peak`.
        storages: how many.
        num_bytes: of all of them.
    """

    line: str
    kind: str
    storages: int
    num_bytes: int


class Level(NamedTuple):
    """What is there at some time.

    Attributes:
        node: the index of the node that is called next.
        sizes: bytes by kind.
    """

    node: int
    sizes: dict[str, int]


@dataclass(frozen=True)
class Held:
    """The memory of a rank, beside `Recording.peak`.

    Attributes:
        made: at the peak, the largest first. Each stream has memory of its own, so each counts at
            the time when it holds most.
        reserved: bytes that torch's allocator reserves on a GPU until the program ends.
        needed: bytes that it could do with, if it gave back in time what it only keeps for later.
        levels: of the last step, in order; each is the highest of some hundredth of it or less.
    """

    made: tuple[Made, ...] = ()
    reserved: int = 0
    needed: int = 0
    levels: tuple[Level, ...] = ()


NOTHING = Held()
