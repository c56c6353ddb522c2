"""Which files are dumps, and of which rank each is.

Runs in the command's process, called by command.py. A person names files, folders or patterns, and
may say of which rank a file is: `3=FILE`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distlab.arguments import refuse

RANK_GIVEN = re.compile(r"(\d+)=(.+)", re.DOTALL)
# "nccl_trace_rank_3", "rank3.json", "trace_3.pickle", "nccl_trace_rank_3_json"
RANK_IN_NAME = re.compile(r"(\d+)([._-]?[A-Za-z]*)?$")
AFTER_RANK = re.compile(r"rank[_-]?(\d+)")
EXAMPLE = "For example: distlab explain /tmp/nccl_trace_rank_*"


@dataclass(frozen=True)
class DumpFile:
    """A file that may be a dump.

    Attributes:
        path: the file.
        rank: its rank, as a person has said; None if nobody has.
        is_named: whether a person has named this file; others were found in a folder.
    """

    path: str
    rank: int | None = None
    is_named: bool = True

    @property
    def rank_of_name(self) -> int | None:
        """The rank in its name, after "rank" or at its end; None if there is none."""
        name = os.path.basename(self.path)
        found = AFTER_RANK.search(name) or RANK_IN_NAME.search(name)
        return None if found is None else int(found[1])


def files_named(names: Sequence[str]) -> list[DumpFile]:
    """The files that a command line names, each once, in order.

    Args:
        names: files, folders, patterns, and `RANK=FILE`.

    Raises:
        ArgumentError: a name stands for no file.
    """
    found: dict[str, DumpFile] = {}
    for name in names:
        for one in _files_of(name):
            known = found.get(one.path)
            if known is None or known.rank is None:
                found[one.path] = one
    return list(found.values())


def _files_of(name: str) -> Iterator[DumpFile]:
    """The files for which one name stands."""
    if os.path.isdir(name):
        inside = sorted(os.listdir(name), key=_in_order)
        paths = [os.path.join(name, one) for one in inside if not one.startswith(".")]
        files = [path for path in paths if os.path.isfile(path)]
        if not files:
            refuse("FILES", "a folder with a file for each rank", name, EXAMPLE)
        for path in files:
            yield DumpFile(path, is_named=False)
        return
    if os.path.isfile(name):
        yield DumpFile(name)
        return
    given = RANK_GIVEN.fullmatch(name)
    if given is not None and os.path.isfile(given[2]):
        yield DumpFile(given[2], rank=int(given[1]))
        return
    matching = sorted(glob.glob(name, recursive=True), key=_in_order)
    files = [path for path in matching if os.path.isfile(path)]
    if not files:
        refuse("FILES", "files that exist, folders or patterns", name, EXAMPLE)
    for path in files:
        yield DumpFile(path)


def _in_order(name: str) -> tuple[str, int, str]:
    """The order of files: rank 10 comes after rank 9."""
    found = RANK_IN_NAME.search(name)
    if found is None:
        return name, -1, ""
    return name[: found.start()], int(found[1]), found[2]
