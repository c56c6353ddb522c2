"""What can be seen of the files that ranks have saved while some were preempted.

Runs on the notebook's kernel or in the process of `distlab run`, called by preempting.py beside it.
Files are looked at, and none is unpickled: a file of torch.save is a zip archive, whose table of
contents is written last; `torch.distributed.checkpoint` writes its .metadata last.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from distlab.diagnosis.preempted import SavedFile
from distlab.wire.messages import SAVE_BEGAN, SAVE_ENDED, Moment

CLOCK_SECONDS = 0.05  # by which the time of a file may be behind that of the clock
OF_RANK = re.compile(r"__(\d+)_\d+\.distcp")
MOST_FILES = 200  # of a folder, in which what was renamed is looked for


def saved_files(
    moments: Sequence[tuple[int, Moment]], since: float, n: int
) -> tuple[tuple[SavedFile, tuple[int, ...]], ...]:
    """What was saved after the signal, each file with the ranks that saved it.

    Args:
        moments: what ranks have reported, each with its rank.
        since: when the signal came, in seconds of this machine's clock.
        n: the number of ranks.
    """
    saved = _saved_since(moments, since)
    found: dict[SavedFile, set[int]] = {}
    for path, ranks in saved.items():
        for file in _look_at(path, since, n, saved):
            found.setdefault(file, set()).update(ranks)
    by_path = sorted(found, key=lambda file: file.path)
    return tuple((file, tuple(sorted(found[file]))) for file in by_path)


def _saved_since(moments: Sequence[tuple[int, Moment]], since: float) -> dict[str, set[int]]:
    """The ranks that saved to each path, as far as a save had not ended before the signal."""
    begun: dict[str, set[int]] = {}
    for rank, moment in moments:
        if moment.what == SAVE_BEGAN:
            begun.setdefault(moment.words, set()).add(rank)
        elif moment.what == SAVE_ENDED and moment.clock < since:
            begun[moment.words].discard(rank)
    return {path: ranks for path, ranks in begun.items() if ranks}


def _look_at(path: str, since: float, n: int, saved: Container[str]) -> Iterator[SavedFile]:
    """What can be seen of a path to which something was saved; `saved` has all such paths."""
    if path.endswith(os.sep):
        yield SavedFile(_shown(path), _words_of_folder(Path(path), since, n))
        return
    file = Path(path)
    if file.exists():
        yield SavedFile(_shown(path), _words_of_file(file))
        return
    newer = [other for other in _newer_files(file.parent, since) if str(other) not in saved]
    # "a.pt" for "a.pt.partial" or ".a.pt.tmp"
    renamed = [other for other in newer if other.name in file.name] or newer
    for other in renamed:
        yield SavedFile(_shown(str(other)), _words_of_file(other))
    if not renamed:
        yield SavedFile(_shown(path), "it is not there any more")


def _newer_files(folder: Path, since: float) -> Iterator[Path]:
    """The files of a folder that have changed since."""
    if not folder.is_dir():
        return
    for file in sorted(folder.iterdir())[:MOST_FILES]:
        if file.is_file() and file.stat().st_mtime >= since - CLOCK_SECONDS:
            yield file


def _words_of_file(file: Path) -> str:
    """What a file of torch.save is."""
    if file.stat().st_size == 0:
        return "empty"
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except zipfile.BadZipFile:
        return "not complete, or not in the format of torch.save: its table of contents is missing"
    if damaged is not None:
        return f"damaged: {damaged} in it has the wrong checksum"
    return "complete: it can be loaded"


def _words_of_folder(folder: Path, since: float, n: int) -> str:
    """What a folder of torch.distributed.checkpoint is."""
    if not folder.is_dir():
        return "not there"
    parts = []
    writers = set()
    for file in folder.iterdir():
        found = OF_RANK.fullmatch(file.name)
        if found and file.stat().st_mtime >= since - CLOCK_SECONDS:
            writers.add(int(found[1]))
    metadata = folder / ".metadata"
    is_new = metadata.exists() and metadata.stat().st_mtime >= since - CLOCK_SECONDS
    if is_new:
        return "complete: its .metadata is there, which is written last"
    if metadata.exists():
        parts.append("its .metadata is older than the signal: the save had not finished")
    else:
        parts.append("lacks .metadata: the save had not finished")
    missing = [str(rank) for rank in range(n) if rank not in writers]
    if missing and writers:
        parts.append(f"no new file of rank {', '.join(missing)}")
    return "; ".join(parts)


def _shown(path: str) -> str:
    """A path as a person knows it: below the working directory without that, else its last part."""
    here = os.getcwd() + os.sep
    if path.startswith(here):
        return path.removeprefix(here)
    is_folder = path.endswith(os.sep)
    return os.path.basename(path.rstrip(os.sep)) + (os.sep if is_folder else "")
