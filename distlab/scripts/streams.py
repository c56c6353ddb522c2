"""Where the stdout and stderr of each rank go: to the terminal, into files, or both.

Runs in the launcher's process, called by options.py and terminal.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STDOUT = 1  # descriptors, and torchrun's numbers; 3 means both
STDERR = 2
NAMES = {STDOUT: "stdout", STDERR: "stderr"}
ALL_RANKS = -1  # the key of what was asked for without a rank
LOG_HELP = "folder for the files of --redirects and --tee: DIR/0/stdout.log and so on, by rank"


@dataclass(frozen=True)
class Streams:
    """Where what ranks write goes, as a person has asked for it.

    Attributes:
        prefix: whether each line says which rank has written it; None to decide by what is written.
        folder: for files; "" for none.
        redirected: what goes into files only: torchrun's numbers, by rank.
        copied: what goes into files, too.
        shown: the ranks whose lines are shown; None for all.
    """

    prefix: bool | None = None
    folder: str = ""
    redirected: Mapping[int, int] = field(default_factory=dict)
    copied: Mapping[int, int] = field(default_factory=dict)
    shown: frozenset[int] | None = None

    def is_shown(self, rank: int, stream: int) -> bool:
        """Whether a stream of a rank goes to the terminal."""
        if self.shown is not None and rank not in self.shown:
            return False
        return not _has(self.redirected, rank, stream) or _has(self.copied, rank, stream)

    def file_of(self, rank: int, stream: int) -> str:
        """The file into which a stream of a rank goes, in `folder`; "" for none."""
        if _has(self.redirected, rank, stream) or _has(self.copied, rank, stream):
            return f"{rank}/{NAMES[stream]}.log"
        return ""

    @property
    def has_files(self) -> bool:
        """Whether anything goes into files."""
        return any(self.redirected.values()) or any(self.copied.values())


def _has(streams: Mapping[int, int], rank: int, stream: int) -> bool:
    """Whether a stream of a rank is among those that were asked for."""
    return bool(streams.get(rank, streams.get(ALL_RANKS, 0)) & stream)


def by_rank(text: str) -> dict[int, int]:
    """torchrun's way to name streams: "3" for all ranks, or "0:3,1:2".

    Raises:
        ValueError: it is something else.
    """
    found = {}
    for part in text.split(","):
        rank, colon, number = part.partition(":")
        if not colon:
            rank, number = str(ALL_RANKS), rank
        if int(number) not in range(4):
            raise ValueError(text)
        found[int(rank)] = int(number)
    return found
