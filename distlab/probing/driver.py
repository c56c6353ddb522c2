"""Runs the probe's processes and hears what came of each case; starts new ones where a case ended or blocked them.

Called by the probe in the notebook's kernel. The processes are no ranks of the cluster, but carry its tag: its guard
ends them when the notebook goes. They tell of their progress in files, which works however they were started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distlab.diagnosis import exit_words
from distlab.errors import ClusterError
from distlab.probing.names import Column, Outcome

CASE_SECONDS = 2.0  # a call waits for its peers
PATIENCE = 10  # times as long without any news, and the processes are ended
START_SECONDS = 90.0  # the same while they import torch

Found = dict[Column, dict[str, Outcome]]


@dataclass
class Batch:
    """Processes that work on some cases together, from their start to their end."""

    folder: str
    processes: list[subprocess.Popen]
    size: int
    begun: dict[int, tuple[Column, str]] = field(default_factory=dict)  # by rank, what it has begun and not ended
    done: set[int] = field(default_factory=set)
    places: dict[int, int] = field(default_factory=dict)  # how far each rank's file has been read

    def news(self) -> Iterator[tuple[Column, str, Outcome]]:
        """What came of cases since the last call; every rank says the same."""
        for rank in range(self.size):
            for entry in self._lines(rank):
                if entry[0] == "done":
                    self.done.add(rank)
                    continue
                column, name = Column(entry[1], entry[2]), entry[3]
                if entry[0] == "begin":
                    self.begun[rank] = (column, name)
                else:
                    self.begun.pop(rank, None)
                    yield column, name, Outcome(entry[4], entry[5])

    def _lines(self, rank: int) -> Iterator[Any]:
        path = Path(self.folder, f"log-{rank}")
        if not path.exists():
            return
        with path.open() as log:
            log.seek(self.places.get(rank, 0))
            text = log.read()
        whole = text[: text.rfind("\n") + 1]
        self.places[rank] = self.places.get(rank, 0) + len(whole)
        yield from map(json.loads, whole.splitlines())

    def exited(self) -> list[tuple[int, int]]:
        """Place and exit status of the processes that have ended."""
        status = [(place, process.poll()) for place, process in enumerate(self.processes)]
        return [(place, code) for place, code in status if code is not None]

    def undone(self, place: int) -> bool:
        """Whether a process, or the one that stands for all, has cases left to do."""
        return place not in self.done if len(self.processes) == self.size else len(self.done) < self.size

    def last_words(self) -> str:
        """The end of what the processes wrote to stderr."""
        text = Path(self.folder, "stderr").read_text(errors="replace")
        return "\n".join([line for line in text.splitlines() if line.strip()][-4:])

    def end(self) -> None:
        """End every process of the batch, those that mpiexec has started too, and wait until they are gone."""
        import psutil

        for process in self.processes:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
        for process in self.processes:
            process.wait()
            process.stdin.close()


def run_cases(
    size: int,
    todo: Sequence[tuple[Column, str]],
    modules: Sequence[str],
    environment: Mapping[str, str],
    prefix: Sequence[str] = (),
    tell: Callable[[int, str], None] = lambda done, what: None,
    seconds: float = CASE_SECONDS,
) -> Found:
    """Try cases on `size` processes of their own, and say what came of each.

    Runs on: the notebook's kernel.

    Args:
        todo: which cases, each with its column, the cases of a column together. modules: to import first.
        environment: of the processes, added to this one's. prefix: a command that starts all of them, such as
            ["mpiexec", "-n", "2"]; none starts them one by one. tell: is told how many are done, and which is next.
        seconds: that a case may wait for its peers.

    Raises:
        ClusterError: the processes do not start. Where they have answered before, the rest is "not tried".
    """
    found: Found = {}
    todo = list(todo)

    def say(case: str) -> None:
        tell(sum(len(cases) for cases in found.values()), case)

    while todo:
        folder = tempfile.mkdtemp(prefix="distlab-probe-")
        batch = start(folder, size, todo, modules, environment, prefix, seconds)
        try:
            blamed, why = follow(batch, found, say, seconds)
            if blamed is not None:
                found.setdefault(blamed[0], {})[blamed[1]] = Outcome(*why)
            left = [(column, name) for column, name in todo if name not in found.get(column, {})]
            if not found and why:
                raise ClusterError(f"The probe's processes did not start: {why}.\n{batch.last_words()}".rstrip())
        finally:
            batch.end()
            shutil.rmtree(folder, ignore_errors=True)
        if left == todo:  # nothing was answered by these processes, nor will it be by the next
            for column, name in left:
                found.setdefault(column, {})[name] = Outcome("not tried", f"its processes did not start: {why}")
            return found
        todo = left
    return found


def start(
    folder: str,
    size: int,
    todo: Sequence[tuple[Column, str]],
    modules: Sequence[str],
    environment: Mapping[str, str],
    prefix: Sequence[str],
    seconds: float,
) -> Batch:
    """Start the processes on these cases."""
    columns: dict[Column, list[str]] = {}
    for column, name in todo:
        columns.setdefault(column, []).append(name)
    plan = {
        "size": size,
        "seconds": seconds,
        "store": f"{folder}/store",
        "log": f"{folder}/log",
        "modules": list(modules),
        "columns": [[column.backend, column.device, names] for column, names in columns.items()],
        "watch": not prefix,  # mpiexec gives its own stdin to one of them only
    }
    command = [*prefix, sys.executable, "-m", "distlab.probing.trial", json.dumps(plan)]
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    everywhere = {**os.environ, **environment, "PYTHONPATH": path}
    batch = Batch(folder, [], size)
    with open(f"{folder}/stderr", "wb") as errors:
        for rank in range(1 if prefix else size):
            own = {} if prefix else {"DISTLAB_PROBE_RANK": str(rank)}
            batch.processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=errors,
                    stderr=errors,
                    env={**everywhere, **own},
                    cwd=folder,
                )
            )
    return batch


def follow(
    batch: Batch, found: Found, tell: Callable[[str], None], seconds: float
) -> tuple[tuple[Column, str] | None, Any]:
    """Wait until the processes are done, or one has ended, or nothing moves any more; note what comes of the cases.

    Returns:
        The case to blame and its outcome as (kind, message); or None, with why nothing came, "" when all is well.
    """
    heard, last = False, time.monotonic()
    while len(batch.done) < batch.size:
        exited = batch.exited()  # before the news: what a process wrote before it ended is read
        before = dict(batch.places)
        for column, name, outcome in batch.news():
            found.setdefault(column, {})[name] = outcome
        if batch.places != before:
            last = time.monotonic()
        if batch.begun:  # none begins before all are there
            heard = True
            tell(next(iter(batch.begun.values()))[1])
        early = {place: code for place, code in exited if batch.undone(place)}
        if early:
            words = exit_words(next(iter(early.values())))
            ended = early if len(batch.processes) == batch.size else range(batch.size)
            return blame(batch, found, ended, ("ends the process", f"the process {words}"), words)
        silence = time.monotonic() - last
        if silence > (PATIENCE * seconds if heard else START_SECONDS):
            words = f"nothing came for {silence:.0f} s"
            why = f"it did not return within {PATIENCE * seconds:g} s"
            between = set(range(batch.size)) - batch.done - set(batch.begun)  # others wait for these in the next case
            return blame(batch, found, () if between else batch.begun, ("hangs", why), words)
        time.sleep(0.01)
    return None, ""


def blame(
    batch: Batch, found: Found, ranks: Iterable[int], outcome: tuple[str, str], words: str
) -> tuple[tuple[Column, str] | None, Any]:
    """The case that was going on, on the ranks that failed, when they failed; None where none was."""
    begun = [batch.begun[rank] for rank in ranks if rank in batch.begun]
    blamed = next(((column, name) for column, name in begun if name not in found.get(column, {})), None)
    return blamed, words if blamed is None else outcome
