"""All dumps of a job, each of its rank.

Runs in the command's process, called by command.py. Many large dumps are read by several processes,
each of which returns only what is kept of them.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from distlab import machine
from distlab.arguments import refuse
from distlab.errors import ArgumentError, DataError
from distlab.scripts.explaining.files import DumpFile
from distlab.scripts.explaining.groups import own_rank
from distlab.scripts.explaining.kept import RankRecord
from distlab.scripts.explaining.reading import dumps_in
from distlab.scripts.explaining.recording import recorded
from distlab.words import grouped, rank_list

LARGE = 20_000_000  # bytes of all dumps, above which starting processes is worth it
AT_ONCE = 4  # files that a process is given
# what a value of a kind that nobody expects gives, wherever it is first used
WRONG_KINDS = (TypeError, ValueError, AttributeError, LookupError, RecursionError)
# how the rank of a dump was found
BY_PERSON = "as given"
BY_DUMP = "as the dump says"
BY_NAME = "by the file's name"
BY_GROUPS = "by its groups"


@dataclass
class Gathered:
    """The dumps of a job.

    Attributes:
        ranks: what is kept of each, by rank.
        found_by: how its rank was found, by rank.
        skipped: files of a folder that are no dumps, and why.
    """

    ranks: dict[int, RankRecord] = field(default_factory=dict)
    found_by: dict[int, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def words(self) -> str:
        """How many dumps there are, of which ranks, and how that is known."""
        dumps = "1 dump" if len(self.ranks) == 1 else f"{len(self.ranks)} dumps"
        ways = grouped((how, rank) for rank, how in sorted(self.found_by.items()))
        parts = [f"{rank_list(ranks)} {how}" for how, ranks in ways.items()]
        return f"Read {dumps}: {', '.join(parts)}."


def gather(files: Sequence[DumpFile]) -> Gathered:
    """The dumps in these files.

    Raises:
        DataError: a file that a person has named is no dump, or none of a folder's is.
        ArgumentError: nobody knows of which rank a dump is, or two are of one.
    """
    gathered = Gathered()
    for file, found in zip(files, _read(files), strict=True):
        if isinstance(found, str):
            if file.is_named:
                raise DataError(f"{file.path} {found}.")
            gathered.skipped[file.path] = found
            continue
        for record in found:
            _add(gathered, file, record, is_alone=len(found) == 1)
    if not gathered.ranks:
        path, why = next(iter(gathered.skipped.items()))
        raise DataError(f"No file there is a dump; {path} {why}.")
    return gathered


def _read(files: Sequence[DumpFile]) -> Iterator[list[RankRecord] | str]:
    """What is kept of the dumps in each file; of one that is none, why."""
    paths = [file.path for file in files]
    processes = min(machine.cores(), len(paths))
    if processes == 1 or sum(map(os.path.getsize, paths)) < LARGE:
        yield from map(read_file, paths)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(read_file, paths, chunksize=AT_ONCE)


def read_file(path: str) -> list[RankRecord] | str:
    """What is kept of the dumps in a file, or why it has none, as the end of a sentence about it.

    Runs on: the command's process, and those that it starts.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
        with _without_collecting():
            return [recorded(path, dump.rank, dump.content) for dump in dumps_in(content)]
    except OSError as error:
        if isinstance(error, DataError):
            return str(error)
        return f"cannot be read ({error.strerror})"
    except WRONG_KINDS as error:
        return f"holds what no flight recorder writes ({type(error).__name__}: {error})"


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Python's garbage collector looks at a million new dicts again and again, and frees none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _add(gathered: Gathered, file: DumpFile, record: RankRecord, is_alone: bool) -> None:
    """Add a dump under its rank.

    Args:
        gathered: what was found before.
        file: its file.
        record: what is kept of it.
        is_alone: whether it is the only dump of the file.
    """
    rank, how = _rank_of(file, record, is_alone)
    if rank is None:
        refuse(
            "FILES",
            "dumps whose rank is known, from the end of the file's name or from their content",
            file.path,
            f"Say which rank it is: 0={file.path}",
        )
    other = gathered.ranks.get(rank)
    if other is not None:
        if other.has_frames != record.has_frames:  # one dump as a pickle and as JSON
            if record.has_frames:
                gathered.ranks[rank] = record
            return
        raise ArgumentError(
            f"FILES must be one dump of each rank, got two of rank {rank}: {other.path} and "
            f"{record.path}. Give those of one backend and one moment; {rank}={other.path} says of "
            "which rank a file is."
        )
    gathered.ranks[rank] = record
    gathered.found_by[rank] = how


def _rank_of(file: DumpFile, record: RankRecord, is_alone: bool) -> tuple[int | None, str]:
    """The rank of a dump, and how it was found."""
    if file.rank is not None and is_alone:
        return file.rank, BY_PERSON
    if record.rank is not None:
        return record.rank, BY_DUMP
    if file.rank_of_name is not None and is_alone:
        return file.rank_of_name, BY_NAME
    return own_rank(record), BY_GROUPS
