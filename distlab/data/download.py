"""Files that are fetched once a machine: a first rank downloads and checks them while the others wait.

Called by sets.py on the ranks; without a process group the same calls work in one process.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distlab.errors import DataError

BEAT_SECONDS = 0.5  # much less than any group's timeout
PATIENCE_SECONDS = 20  # for a server that does not answer
TELL_SECONDS = 2.0
PIECE = 1 << 16  # bytes


@dataclass(frozen=True)
class Source:
    """Where the files of a data set come from.

    Args:
        mirrors: addresses that a file's name is appended to, tried in this order.
        files: MD5 checksum of each file by its name, as the publisher gives them.
    """

    mirrors: tuple[str, ...]
    files: dict[str, str]


def fetch(source: Source, folder: Path) -> None:
    """Have every file of a source in a folder, whole: what is missing or damaged is downloaded.

    A file takes its name when it is whole, so that a download that was cut off leaves none behind.

    Runs on: anywhere, one process at a time; see `one_rank_first`.

    Raises:
        DataError: a file cannot be downloaded from any mirror.
    """
    for name, md5 in source.files.items():
        path = folder / name
        if path.is_file() and checksum(path) == md5:
            continue
        what = "is damaged" if path.is_file() else "is missing"
        reasons = []
        for mirror in source.mirrors:
            try:
                download(mirror + name, path, md5)
                break
            except (OSError, http.client.HTTPException) as error:
                reasons.append(f"{mirror}: {error}")
        else:
            why = "; ".join(reasons)
            raise DataError(f"{path} {what} and could not be downloaded ({why}). Put a whole copy there.")


def download(address: str, path: Path, md5: str) -> None:
    """Download one file, telling on stderr how far it is.

    Runs on: anywhere.

    Raises:
        OSError: the server cannot be reached, the disk is full, or what came has another checksum.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer, part.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            _copy(answer.read, file.write, lambda done: _tell(f"{path.name}: {_progress(done, total)}"))
        if checksum(part) != md5:
            raise OSError(f"the file that came has the checksum {checksum(part)}, not {md5}")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """A file's MD5, which tells damage; it is no protection from forgery.

    Runs on: anywhere.
    """
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def one_rank_first(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call fn(*args, **kwargs) on one rank of each machine, and then on the others, which find the work done.

    However long the first takes, the others do not run into the group's timeout. For example
    one_rank_first(torchvision.datasets.MNIST, "data", download=True).

    Runs on: every rank (one that skips it hangs the rest). LOCAL_RANK, which the cluster and torchrun set, tells who is
    first on a machine. Without a process group it is the plain call.

    Returns:
        what fn returned on this rank.

    Raises:
        DataError: the call failed on a rank that was first; that rank itself raises what fn raised.
    """
    if not dist.is_initialized():
        return fn(*args, **kwargs)
    first = int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0
    value, failure = _call_and_beat(fn, args, kwargs) if first else (_beat(), None)
    reports: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(reports, failure and f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for report in filter(None, reports):
        raise DataError(f"The rank that came first failed. {report}")
    return value if first else fn(*args, **kwargs)


def _call_and_beat(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Exception | None]:
    """What fn returned, or raised, while a thread meets the ranks that wait."""
    finished = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        beats = pool.submit(_beat, finished)
        try:
            value, failure = fn(*args, **kwargs), None
        except Exception as error:
            value, failure = None, error
        finally:
            finished.set()
    beats.result()
    return value, failure


def _beat(finished: threading.Event | None = None) -> None:
    """Meet the other ranks twice a second until the first of every machine has finished: no wait is a long one."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    busy = torch.ones(1, dtype=torch.int64, device=device)
    while busy.item():
        busy.fill_(finished is not None and not finished.wait(BEAT_SECONDS))
        dist.all_reduce(busy)


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], Any], tell: Callable[[int], None]) -> None:
    """Copy a stream, and tell now and then how many bytes were copied."""
    done, told = 0, time.monotonic()
    while piece := read(PIECE):
        write(piece)
        done += len(piece)
        if time.monotonic() - told > TELL_SECONDS:
            told = time.monotonic()
            tell(done)
    tell(done)


def _progress(done: int, total: int) -> str:
    return f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
