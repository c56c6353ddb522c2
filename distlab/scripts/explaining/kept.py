"""What is kept of a dump, in plain data: the calls of one rank in each group.

Made by recording.py in the command's processes; read by groups.py, statuses.py, out_of_step.py,
findings.py and words.py. Of a completed call only a number is kept, which stands for its name and
tensors; there may be a million of them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from distlab.wire.source import Line

Tensors = tuple[tuple[str, tuple[int, ...]], ...]
Direction = tuple[bool, int, int]  # of messages: whether they are sent here; sender and receiver
DEFAULT = "default_pg"  # how torch describes the world


@dataclass(frozen=True)
class Kind:
    """What calls of one collective have in common that are compared.

    Attributes:
        function: what the program calls.
        tensors: the (dtype, shape) of each tensor that must be alike on all ranks.
        any_shape: whether the shapes may differ.
        ranks: how many ranks the group must have, as the tensors show; 0 if they do not.
    """

    function: str
    tensors: Tensors
    any_shape: bool = False
    ranks: int = 0


@dataclass(frozen=True)
class Call:
    """A call that is kept whole.

    Attributes:
        number: its place among all calls of the rank.
        sequence: its number in the group: among collectives, or among messages of its kind.
        kind: what is compared.
        op: what the program called.
        lines: the program's lines, outermost first.
        is_open: whether it has not completed.
        has_started: whether it is known to have started.
        direction: of a message, whether this rank sends it, and its sender and receiver by their
            numbers in the group.
        created: when it was begun, in ns.
    """

    number: int
    sequence: int
    kind: Kind
    op: str
    lines: tuple[Line, ...]
    is_open: bool
    has_started: bool
    direction: Direction | None = None
    created: int = 0


@dataclass
class GroupRecord:
    """The calls of one rank in one group.

    Attributes:
        name: torch's name of the group.
        description: what the program calls it; torch calls the world "default_pg".
        members: its ranks in order; empty if the dump does not say.
        size: how many ranks it must have, as its calls show; 0 if they do not.
        sequences: the numbers of its collectives, in order.
        kinds: for each, the place of its kind in the rank's list of kinds.
        kept: those that are kept whole: the first open ones and the newest ones.
        begun: how many messages were begun, by (is_send, sender, receiver).
        over: how many of these have completed.
        messages: those that are kept whole.
        has_shifted: whether messages have taken numbers of collectives, and it is not known how
            many, because the recorder has forgotten some.
    """

    name: str
    description: str = ""
    members: tuple[int, ...] = ()
    size: int = 0
    sequences: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("q"))
    kept: list[Call] = field(default_factory=list)
    begun: dict[Direction, int] = field(default_factory=dict)
    over: dict[Direction, int] = field(default_factory=dict)
    messages: list[Call] = field(default_factory=list)
    has_shifted: bool = False

    @property
    def is_world(self) -> bool:
        """Whether it is the group of all ranks."""
        return self.description == DEFAULT or (self.name == "0" and not self.members)


@dataclass
class RankRecord:
    """What is kept of one dump.

    Attributes:
        path: its file.
        rank: its rank; None if the dump does not say.
        version: of the dump's format.
        entries: how many calls it holds.
        lost: how many calls the recorder has forgotten, because its buffer was full.
        has_frames: whether it has frames, which JSON has not.
        groups: the groups, by name.
        kinds: the kinds of its calls.
    """

    path: str
    rank: int | None
    version: str = ""
    entries: int = 0
    lost: int = 0
    has_frames: bool = False
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    kinds: list[Kind] = field(default_factory=list)
