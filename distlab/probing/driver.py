"""Runs the probe's processes and hears what came of each case; starts new ones where a case ended or blocked them.

A busy machine can stop a process for longer than a case may take. So a case that seems to hang is tried once more, with
longer limits and on new processes, and what comes of it then is believed.

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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from distlab.diagnosis import exit_words
from distlab.errors import ClusterError
from distlab.probing.names import Column, Outcome

START_SECONDS = 90.0  # what all processes have to begin with the first case, after they have imported torch

Case = tuple[Column, str]
Found = dict[Column, dict[str, Outcome]]


class Limits(NamedTuple):
    """Seconds that a call waits for its peers; and those without any news, after which the processes are ended."""

    call: float
    silence: float


FIRST, AGAIN = Limits(call=2.0, silence=20.0), Limits(call=10.0, silence=40.0)
MOST_AGAIN = 10  # cases that are tried again; where more wait in vain, it is the backend and not the machine


@dataclass
class Batch:
    """Processes that work on some cases together, from their start to their end."""

    folder: str
    processes: list[subprocess.Popen]
    size: int
    begun: dict[int, Case] = field(default_factory=dict)  # by rank, what it has begun and not ended
    answered: dict[Case, bool] = field(default_factory=dict)  # by case, whether a rank has waited in vain
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
                    self.answered[column, name] = entry[6]
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

    def all_began(self) -> bool:
        """Whether every rank has begun a case."""
        return all(self.places.get(rank) for rank in range(self.size))

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
    todo: Sequence[Case],
    modules: Sequence[str],
    environment: Mapping[str, str],
    prefix: Sequence[str] = (),
    tell: Callable[[int, str], None] = lambda done, what: None,
    limits: tuple[Limits, Limits] = (FIRST, AGAIN),
) -> Found:
    """Try cases on `size` processes of their own, and say what came of each.

    A case in which a rank waited in vain is tried again by itself, and what comes of it then is its outcome; of many
    such cases, the first MOST_AGAIN.

    Runs on: the notebook's kernel.

    Args:
        todo: which cases, each with its column, the cases of a column together. modules: to import first.
        environment: of the processes, added to this one's. prefix: a command that starts all of them, such as
            ["mpiexec", "-n", "2"]; none starts them one by one. tell: is told how many are done, and which is next.
        limits: of the first time that a case is tried, and of the second.

    Raises:
        ClusterError: the processes do not start. Where they have answered before, the rest is "not tried".
    """
    found: Found = {}
    first, again = limits
    begin = partial(start, size=size, modules=modules, environment=environment, prefix=prefix)

    def say(case: str) -> None:
        tell(sum(len(cases) for cases in found.values()), case)

    for case in try_cases(todo, found, begin, say, first)[:MOST_AGAIN]:
        try_cases([case], found, begin, say, again)
    return found


def try_cases(
    todo: Sequence[Case], found: Found, begin: Callable[..., Batch], tell: Callable[[str], None], limits: Limits
) -> list[Case]:
    """Try cases within these limits, and note in `found` what came of each; `begin` starts processes on some of them.

    Returns:
        The cases in which a rank waited in vain.
    """
    left, late = list(todo), set()
    while left:
        folder = tempfile.mkdtemp(prefix="distlab-probe-")
        batch = begin(folder, todo=left, seconds=limits.call)
        try:
            blamed, why = follow(batch, found, tell, limits.silence)
            if blamed is not None:
                found.setdefault(blamed[0], {})[blamed[1]] = Outcome(*why)
                batch.answered[blamed] = why[0] == "hangs"
            if not found and why:
                raise ClusterError(f"The probe's processes did not start: {why}.\n{batch.last_words()}".rstrip())
        finally:
            batch.end()
            shutil.rmtree(folder, ignore_errors=True)
        if not batch.answered:  # nor will anything be by the next processes
            for column, name in left:
                untried = Outcome("not tried", f"its processes did not start: {why}")
                found.setdefault(column, {}).setdefault(name, untried)
            break
        late |= {case for case, waited in batch.answered.items() if waited}
        left = [case for case in left if case not in batch.answered]
    return [case for case in todo if case in late]


def start(
    folder: str,
    todo: Sequence[Case],
    seconds: float,
    *,
    size: int,
    modules: Sequence[str],
    environment: Mapping[str, str],
    prefix: Sequence[str],
) -> Batch:
    """Start the processes on these cases, of which each call waits so many seconds for its peers."""
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


def follow(batch: Batch, found: Found, tell: Callable[[str], None], patience: float) -> tuple[Case | None, Any]:
    """Wait until the processes are done, or one has ended, or nothing moves any more; note what comes of the cases.

    Returns:
        The case to blame and its outcome as (kind, message); or None, with why nothing came, "" when all is well.
    """
    last = time.monotonic()
    while len(batch.done) < batch.size:
        exited = batch.exited()  # before the news: what a process wrote before it ended is read
        before = dict(batch.places)
        for column, name, outcome in batch.news():
            found.setdefault(column, {})[name] = outcome
        if batch.places != before:
            last = time.monotonic()
        if batch.begun:
            tell(next(iter(batch.begun.values()))[1])
        early = {place: code for place, code in exited if batch.undone(place)}
        if early:
            words = exit_words(next(iter(early.values())))
            ended = early if len(batch.processes) == batch.size else range(batch.size)
            return blame(batch, ended, ("ends the process", f"the process {words}"), words)
        silence = time.monotonic() - last
        if silence > (patience if batch.all_began() else START_SECONDS):
            words = f"nothing came for {silence:.0f} s"
            why = f"it did not return within {patience:g} s"
            between = set(range(batch.size)) - batch.done - set(batch.begun)  # others wait for these
            return blame(batch, () if between else batch.begun, ("hangs", why), words)
        time.sleep(0.01)
    return None, ""


def blame(batch: Batch, ranks: Iterable[int], outcome: tuple[str, str], words: str) -> tuple[Case | None, Any]:
    """The case that was going on, on the ranks that failed, when they failed; None where none was."""
    begun = [batch.begun[rank] for rank in ranks if rank in batch.begun]
    blamed = next((case for case in begun if case not in batch.answered), None)
    return blamed, words if blamed is None else outcome
