"""Decides about submitted answers, in a process of its own, which `judge_process` starts.

The first line of standard input is a key, and each line after it an order to mark a notebook. Each
line of standard output is the verdict about one exercise. No code of a student's runs here, and no
bytes of theirs are unpickled here: a `runner` calls an answer, and what it did arrives as JSON,
which is compared with what the reference did before any answer was called. A verdict is signed with
the key, which only `judge_process` has as well, so nothing that a student's program writes into
this pipe counts as one.
"""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import distlab
from distlab.checking import Exercise, Question, all_exercises
from distlab.checking.judging import AnswerFailed, Elsewhere, Pair
from distlab.checking.observed import Observed, from_bytes
from distlab_course.classroom.cells import Cell
from distlab_course.classroom.runner import RACE, hide
from distlab_course.classroom.runner_process import REPLY_SECONDS, RunnerLost, RunnerProcess
from distlab_course.classroom.signing import signature
from distlab_course.classroom.submission import (
    Refused,
    defined_only_below,
    is_stub,
    needed_for,
)
from distlab_course.classroom.suspicions import suspicion

NO_REPLY = "the process that runs it ended, or gave no reply for {:.0f} s."
SUSPECT = (
    "It uses {}, by which a program can read the answer or change the check, "
    "so a person has to mark it."
)
PATCHED = "It changes {}, so a person has to mark it."
BELOW = "It uses {}, which only a cell below its check defines, so a person has to look at it."


# by exercise, by call of it as "ranks case": what the reference did on each rank, as text
References = dict[str, dict[str, list[str]]]


@dataclass(frozen=True)
class Decision:
    """What was decided about one answer.

    Attributes:
        passed: whether it gets its points.
        words: the verdict that the student reads.
        look: why a person has to look at it; "" if nobody has to.
    """

    passed: bool
    words: str
    look: str = ""


class Student:
    """One notebook's answers, which one runner after the other calls."""

    def __init__(self, order: dict[str, Any], references: References):
        self._submitted = [Cell(*cell) for cell in order["submitted"]]
        self._lab = [Cell(*cell) for cell in order["lab"]]
        self._allowed = [Cell(*cell) for cell in order["allowed"]]
        self._folder: str = order["folder"]
        self._references = references
        self._runner: RunnerProcess | None = None
        self._changed = ""  # what the answer changed of torch, Python or distlab

    def decide(self, name: str) -> Decision:
        """What to say about the answer to one exercise."""
        self._changed = ""
        try:
            if name not in all_exercises():
                raise Refused("no exercise of this name is installed where it is marked.")
            needed = needed_for(name, self._submitted, self._lab)
            if is_stub(name, needed):
                return Decision(False, f"{name}: not attempted")
            if found := suspicion(needed, self._lab, self._allowed):
                why = SUSPECT.format(found)
                return Decision(False, f"{name}: {why}", why)
            verdict = self._try(name, needed)
        except Refused as error:
            return Decision(False, f"{name}: {error}")
        except AnswerFailed as error:
            return Decision(False, f"{name}: {error.message}")
        except RunnerLost:
            self.end()
            why = NO_REPLY.format(REPLY_SECONDS)
            return Decision(False, f"{name}: {why}")
        if self._changed:
            why = PATCHED.format(self._changed)
            return Decision(False, f"{verdict!r}\n{why}", why)
        if not verdict.passed and (below := defined_only_below(name, self._submitted, needed)):
            why = BELOW.format(below)
            return Decision(False, f"{verdict!r}\n{why}", why)
        return Decision(verdict.passed, repr(verdict))

    def _try(self, name: str, cells: list[Cell]) -> Any:
        """Have the answer called, and compare; returns what `distlab.check` does."""
        if self._runner is None:
            self._runner = RunnerProcess.start(self._folder)
        runner = self._runner
        reply = runner.ask({"name": name, "cells": cells})
        exercise = all_exercises()[name]
        if isinstance(exercise, Question):
            return distlab.check(name, _value(reply))
        world = functools.partial(self._world, runner, exercise)
        return distlab.check(name, Elsewhere(world))

    @contextlib.contextmanager
    def _world(
        self, runner: RunnerProcess, exercise: Exercise, n: int
    ) -> Iterator[Callable[[Any], Pair]]:
        """A function that has a case called on n ranks, and returns what was expected and found."""
        references = self._references[exercise.name]

        def call(case: Any) -> Pair:
            number = _number_of(case, exercise)
            expected = [from_bytes(text.encode()) for text in references[f"{n} {number}"]]
            reply = runner.ask({"n": n, "case": number})
            return expected, self._observed(reply, n)

        yield call

    def _observed(self, reply: dict[str, Any], n: int) -> list[Observed]:
        """What the answer did on each rank; RunnerLost if that cannot be read."""
        try:
            found = [from_bytes(one.encode()) for one in reply["observed"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunnerLost(str(error)) from None
        if len(found) != n:
            raise RunnerLost("a reply of other ranks")
        for observed in found:
            if not self._changed:
                self._changed = observed.changed
        return found

    def end(self) -> None:
        """End the runner, if there is one."""
        if self._runner is not None:
            self._runner.end()
            self._runner = None


def _number_of(case: Any, exercise: Exercise) -> int | str:
    """By which number a runner knows a case."""
    for number, other in enumerate(exercise.cases):
        if other is case:
            return number
    return RACE


def _value(reply: dict[str, Any]) -> Any:
    """The value of a reply, as JSON has it."""
    try:
        return json.loads(reply["value"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunnerLost(str(error)) from None


def main() -> None:
    """Judge what standard input holds, notebook by notebook."""
    hide()
    os.environ["DISTLAB_PROGRESS"] = os.devnull
    # processes that are started from here do not inherit the copy
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    key = bytes.fromhex(sys.stdin.readline())
    references: References = {}
    for line in sys.stdin:
        order = json.loads(line)
        references.update(order["references"])
        student = Student(order, references)
        try:
            for name in order["asked"]:
                decision = student.decide(name)
                decided = [decision.passed, decision.words, decision.look]
                text = json.dumps([order["number"], name, *decided])
                print(json.dumps([text, signature(key, text)]), file=results, flush=True)
        finally:
            student.end()


if __name__ == "__main__":
    main()
