"""Judges that work side by side, for nbgrader's process or Gradescope's.

No code of a student's runs here. References are called first, where no student's code has run.
Then each job has a judge (`judge.py`), which marks one notebook after the other; one that says
nothing for too long is ended, and another one continues.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.checking import Exercise, all_exercises
from distlab.checking.judging import AnswerFailed
from distlab_course.classroom.cells import WRITTEN, Cell
from distlab_course.classroom.judge import Decision, Runner, RunnerLost
from distlab_course.classroom.runner import every_call, hide
from distlab_course.classroom.signing import is_signed
from distlab_course.piped import pipes_of

JUDGE = str(Path(__file__).with_name("judge.py"))
SECONDS = 300.0  # for one exercise; a judge gives up earlier, unless it is harmed
NO_VERDICT = "{}: the process that checks it ended, or gave no verdict for {:.0f} s."
NO_REFERENCE = (
    "{}: the reference could not be called where it is marked ({}), so a person has to mark it."
)


class Marking:
    """Judges, as many as notebooks are marked at once, and what the references did.

    Args:
        jobs: how many.
    """

    def __init__(self, jobs: int):
        hide()
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._judges = [_Judge() for _ in range(jobs)]
        self._threads: list[threading.Thread] = []
        for judge in self._judges:
            thread = threading.Thread(target=self._work, args=(judge,), daemon=True)
            thread.start()
            self._threads.append(thread)
        atexit.register(self._kill)
        self._references: dict[str, dict[str, list[str]]] = {}
        self._failed: dict[str, str] = {}
        self._quiet = threading.Condition()  # no student's code may run while a reference does
        self._running = 0

    def begin(
        self,
        asked: Sequence[str],
        submitted: Sequence[Cell],
        lab: Sequence[Cell],
        allowed: Sequence[Cell],
        files: Path,
    ) -> Future[dict[str, Decision]]:
        """Mark a notebook as soon as a judge is idle.

        Args:
            asked: the names of its exercises.
            submitted: its cells.
            lab: the lab's own cells.
            allowed: our answers.
            files: the folder of what was handed in; answers run in a copy of it.
        """
        future: Future[dict[str, Decision]] = Future()
        order = {"asked": list(asked), "submitted": submitted, "lab": lab, "allowed": allowed}
        self._orders.put(_Order(order, files, future))
        return future

    def end(self) -> None:
        """End every judge, after what it has to mark."""
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            thread.join()
        for judge in self._judges:
            judge.end()
        atexit.unregister(self._kill)

    def _kill(self) -> None:
        for judge in self._judges:
            judge.kill()

    def _work(self, judge: _Judge) -> None:
        """Mark what there is to mark. Runs in a thread of its own."""
        while order := self._orders.get():
            try:
                order.future.set_result(self._mark(judge, order.content, order.files))
            except Exception as error:  # for whoever waits for the result
                order.future.set_exception(error)

    def _mark(self, judge: _Judge, order: dict[str, Any], files: Path) -> dict[str, Decision]:
        with (
            self._after_references(order["asked"]),
            tempfile.TemporaryDirectory(prefix="distlab-marked-") as room,
        ):
            folder = Path(room) / "handed in"
            copy_files(files, folder)
            asked = [name for name in order["asked"] if name not in self._failed]
            found = judge.decide({**order, "asked": asked, "folder": str(folder)}, self._references)
        for name, why in self._failed.items():
            if name in order["asked"]:
                words = NO_REFERENCE.format(name, why)
                found[name] = Decision(False, words, words)
        return found

    @contextlib.contextmanager
    def _after_references(self, asked: Sequence[str]) -> Iterator[None]:
        """While a notebook is marked: its references have been called, and none is being called."""
        with self._quiet:
            missing = [
                name for name in asked if name not in self._references and name not in self._failed
            ]
            if missing:
                self._quiet.wait_for(lambda: self._running == 0)
                self._call_references(missing)
            self._running += 1
        try:
            yield
        finally:
            with self._quiet:
                self._running -= 1
                self._quiet.notify_all()

    def _call_references(self, names: Sequence[str]) -> None:
        """Call references on ranks, and keep what they did, or why they could not be called."""
        runner = None
        with tempfile.TemporaryDirectory(prefix="distlab-references-") as folder:
            for name in names:
                exercise = all_exercises().get(name)
                if not isinstance(exercise, Exercise) or name in self._references:
                    continue
                try:
                    runner = runner or Runner.start(folder)
                    self._references[name] = _observed_of(name, exercise, runner)
                except (AnswerFailed, RunnerLost, KeyError) as error:
                    self._failed[name] = str(error)
                    if runner is not None:  # the next reference gets another one
                        runner.end()
                        runner = None
            if runner is not None:
                runner.end()


def _observed_of(name: str, exercise: Exercise, runner: Runner) -> dict[str, list[str]]:
    """What the reference of an exercise does in every call of a check, by "ranks case"."""
    runner.ask({"name": name, "cells": None})
    calls = {}
    for n, case in every_call(exercise):
        calls[f"{n} {case}"] = runner.ask({"n": n, "case": case})["observed"]
    return calls


@dataclass(frozen=True)
class _Order:
    """A notebook to mark, what was handed in with it, and who waits for the result."""

    content: dict[str, Any]
    files: Path
    future: Future[dict[str, Decision]]


class _Judge:
    """Decides with one process of `judge.py` after the other, each started when it is needed."""

    def __init__(self) -> None:
        self._process: _JudgeProcess | None = None
        self._numbers = itertools.count()

    def decide(
        self, order: dict[str, Any], references: dict[str, dict[str, list[str]]]
    ) -> dict[str, Decision]:
        """What it says about each exercise of a notebook; a process gets each reference once."""
        found: dict[str, Decision] = {}
        while left := [name for name in order["asked"] if name not in found]:
            number = next(self._numbers)
            try:
                if self._process is None:
                    self._process = _JudgeProcess.start()
                process = self._process
                process.send({**order, "asked": left, "number": number}, references)
                for name in left:
                    found[name] = process.read_verdict(number, name)
            except (OSError, EOFError):
                self.end()
                lost = next(name for name in left if name not in found)
                found[lost] = Decision(False, NO_VERDICT.format(lost, SECONDS))
        return found

    def kill(self) -> None:
        """End its process at once."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """End its process; a runner and its ranks end when that is gone."""
        if self._process is not None:
            self._process.end()
            self._process = None


class _JudgeProcess:
    """A running process of `judge.py`."""

    def __init__(self, process: subprocess.Popen[str], key: bytes):
        self._process = process
        self._stdin, self._stdout = pipes_of(process)
        self._key = key
        self._sent: set[str] = set()  # names of the references that it has

    @classmethod
    def start(cls) -> _JudgeProcess:
        """Start a process, and give it the key with which it signs."""
        process = subprocess.Popen(
            # by its path, so that no file of a student's folder is imported
            [sys.executable, JUDGE],
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started = cls(process, key=secrets.token_bytes(32))
        started._stdin.write(f"{started._key.hex()}\n")
        return started

    def send(self, order: dict[str, Any], references: dict[str, dict[str, list[str]]]) -> None:
        """Send an order, with the references that it needs and that the process does not have."""
        new = {}
        for name in order["asked"]:
            if name in references and name not in self._sent:
                new[name] = references[name]
        self._stdin.write(json.dumps({**order, "references": new}) + "\n")
        self._stdin.flush()
        self._sent.update(new)

    def read_verdict(self, number: int, name: str) -> Decision:
        """The next line that the process has signed, for this exercise of this order.

        Raises:
            EOFError: none comes in time.
        """
        limit = threading.Timer(SECONDS, self.kill)
        limit.start()
        try:
            while line := self._stdout.readline():
                with contextlib.suppress(ValueError, TypeError):
                    text, signed = json.loads(line)
                    if is_signed(self._key, text, signed):
                        its_number, its_name, *decided = json.loads(text)
                        if (its_number, its_name) == (number, name):
                            return Decision(*decided)
            raise EOFError
        finally:
            limit.cancel()

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Let it end, and end it if it does not."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS / 10)
        self.kill()
        self._stdout.close()
        self._process.wait()


def copy_files(files: Path, folder: Path) -> None:
    """Copy what was handed in, as plain files, into a folder of its own."""
    folder.mkdir(parents=True)
    for path in files.rglob("*"):
        if path.is_file() and not path.is_symlink():
            target = folder / path.relative_to(files)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def write_files(sources: Sequence[str], folder: Path) -> None:
    """Write what the %%writefile cells of a notebook write.

    A file that cannot be written is left out, as it could not be written in the notebook either.
    """
    for source in sources:
        match = WRITTEN.fullmatch(source)
        if match:
            with contextlib.suppress(OSError, UnicodeEncodeError):
                (folder / match[1]).write_text(match[2])
