"""Judges that work side by side, for nbgrader's process or Gradescope's.

No code of a student's runs here. References are called first, where no student's code has run.
Then each job has a judge (`judge.py`), which marks one notebook after the other; one that says
nothing for too long is ended, and another one continues.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.checking import Exercise, all_exercises
from distlab.checking.judging import AnswerFailed
from distlab_course.classroom.cells import Cell
from distlab_course.classroom.handed_in import copy_files
from distlab_course.classroom.judge import Decision, References
from distlab_course.classroom.judge_process import Judge
from distlab_course.classroom.runner import every_call, hide
from distlab_course.classroom.runner_process import RunnerLost, RunnerProcess

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
        self._judges = [Judge() for _ in range(jobs)]
        self._threads: list[threading.Thread] = []
        for judge in self._judges:
            thread = threading.Thread(target=self._work, args=(judge,), daemon=True)
            thread.start()
            self._threads.append(thread)
        atexit.register(self._kill)
        self._references: References = {}
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
        content = {"asked": list(asked), "submitted": submitted, "lab": lab, "allowed": allowed}
        self._orders.put(_Order(content, files, future))
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

    def _work(self, judge: Judge) -> None:
        """Mark what there is to mark. Runs in a thread of its own."""
        while order := self._orders.get():
            try:
                decisions = self._mark(judge, order.content, order.files)
                order.future.set_result(decisions)
            except Exception as error:  # for whoever waits for the result
                order.future.set_exception(error)

    def _mark(self, judge: Judge, order: dict[str, Any], files: Path) -> dict[str, Decision]:
        with (
            self._after_references(order["asked"]),
            tempfile.TemporaryDirectory(prefix="distlab-marked-") as room,
        ):
            folder = Path(room) / "handed in"
            copy_files(files, folder)
            asked = [name for name in order["asked"] if name not in self._failed]
            order_of_judge = {**order, "asked": asked, "folder": str(folder)}
            found = judge.decide(order_of_judge, self._references)
        for name, why in self._failed.items():
            if name in order["asked"]:
                words = NO_REFERENCE.format(name, why)
                found[name] = Decision(False, words, words)
        return found

    @contextlib.contextmanager
    def _after_references(self, asked: Sequence[str]) -> Iterator[None]:
        """While a notebook is marked: its references have been called, and none is being called."""
        with self._quiet:
            if self._uncalled(asked):
                self._quiet.wait_for(lambda: self._running == 0)
                # another thread may have called some meanwhile
                self._call_references(self._uncalled(asked))
            self._running += 1
        try:
            yield
        finally:
            with self._quiet:
                self._running -= 1
                self._quiet.notify_all()

    def _uncalled(self, asked: Sequence[str]) -> dict[str, Exercise]:
        """The exercises, by name, whose references are still to be called; a question has none."""
        uncalled = {}
        for name in asked:
            exercise = all_exercises().get(name)
            called = name in self._references or name in self._failed
            if isinstance(exercise, Exercise) and not called:
                uncalled[name] = exercise
        return uncalled

    def _call_references(self, exercises: dict[str, Exercise]) -> None:
        """Call references on ranks, and keep what they did, or why they could not be called."""
        runner = None
        with tempfile.TemporaryDirectory(prefix="distlab-references-") as folder:
            for name, exercise in exercises.items():
                try:
                    runner = runner or RunnerProcess.start(folder)
                    self._references[name] = _observed_of(name, exercise, runner)
                except (AnswerFailed, RunnerLost, KeyError) as error:
                    self._failed[name] = str(error)
                    if runner is not None:  # the next reference gets another one
                        runner.end()
                        runner = None
            if runner is not None:
                runner.end()


def _observed_of(name: str, exercise: Exercise, runner: RunnerProcess) -> dict[str, list[str]]:
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
