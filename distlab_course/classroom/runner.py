"""Calls one student's answers on ranks, exercise by exercise, and says what they did.

It decides nothing. It is a process of its own, which `runner_process` starts: for each student a
new one, and for each answer new ranks. Each line of standard input is a JSON object, an answer or a
call of it, and each line of standard output the reply to one. Whatever an answer does to this
process, its replies are only what that answer is said to have done; the judge compares.

Asked by `marking`, with no cells, it calls the references instead, where no student's code has run.
"""

import ctypes
import functools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import distlab
from distlab.checking import Exercise, Question, all_exercises, judging, trial
from distlab.checking.observed import read_plain_only
from distlab.errors import DistlabError, RanksFailed
from distlab_course.classroom.answer import Answer, prepare, value_on_rank
from distlab_course.classroom.cells import Cell

VALUE_SECONDS = 10.0  # for finding a value, as for one call of a function
IMPORT_SECONDS = 100.0  # for what an answer imports
RACE = "race"  # in place of a case's number
# <linux/prctl.h>, <linux/capability.h>
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
CAP_SYS_PTRACE = 19

_LIBC: ctypes.CDLL | None = None
if sys.platform == "linux":
    _LIBC = ctypes.CDLL(None)  # loaded before a fork


def give_up_rights() -> None:
    """Let this process look into no other, and get no rights that it lacks.

    Runs in a runner, before its program begins.
    """
    if _LIBC is not None:
        _LIBC.prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)
        _LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def hide() -> None:
    """Let no other process of this user read this one's memory or files through /proc."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


class Runner:
    """The answer that is being tried, and the ranks on which it is."""

    def __init__(self) -> None:
        self._world = 0  # ranks of the small world that was entered
        self._cluster: Any = None
        self._exercise: Any = None
        self._answer: Answer | None = None

    def begin(self, name: str, cells: list[Cell] | None) -> dict[str, Any]:
        """Get new ranks for an answer, or for a reference; a value is found at once."""
        self._exercise = all_exercises()[name]
        self._answer = None
        self._world = 0
        is_value = isinstance(self._exercise, Question)
        n = 1
        if not is_value:
            n = max(self._exercise.worlds)
        self._cluster = distlab.Cluster(n)
        if cells is None:
            return {"ready": True}
        self._cluster.run(prepare, cells, timeout=IMPORT_SECONDS)
        if is_value:
            run = functools.partial(self._cluster.run, ranks=[0], timeout=VALUE_SECONDS)
            [value] = run(value_on_rank, cells, name)
            return {"value": value}
        self._answer = Answer(cells, name)
        # the reference does not come along
        self._exercise = replace(self._exercise, function=_unknown)
        return {"ready": True}

    def call(self, n: int, case: Any) -> dict[str, Any]:
        """What each rank did with a case, in a world of n ranks."""
        if n != self._world:
            self._enter(n)
        exercise: Exercise = self._exercise
        given = _case_of(exercise, case)
        of_reference = self._answer is None
        call = functools.partial(self._cluster.call, ranks=range(n), timeout=exercise.seconds)
        try:
            replies = call(trial.call_with_case, exercise, given, of_reference, self._answer)
        except RanksFailed as error:
            return _failed(error)
        observed = [reply[0].decode() for reply in replies]
        return {"observed": observed}

    def _enter(self, n: int) -> None:
        """Leave the small world that the ranks are in, and enter one of n ranks."""
        if self._world:
            left = self._cluster.call(trial.leave_world, ranks=range(self._world))
            if not all(left):
                self._cluster.heal()
        self._cluster.call(trial.enter_world, n)
        self._world = n


def _case_of(exercise: Exercise, number: Any) -> Any:
    """The case of a number, or that of the exercise's race."""
    if number == RACE and exercise.race is not None:
        return exercise.race.case
    return exercise.cases[number]


def _failed(error: RanksFailed) -> dict[str, Any]:
    """The reply to a call that ranks did not end well."""
    failed = judging.answer_failed(error)
    return {"failed": [failed.kind, failed.message, failed.stuck]}


def _unknown(*arguments: Any) -> None:
    """In place of a reference."""


def every_call(exercise: Exercise) -> Iterator[tuple[int, Any]]:
    """(number of ranks, number of the case) of each call that a check makes of an exercise."""
    for n in exercise.worlds:
        for case in range(len(exercise.cases)):
            yield n, case
        if exercise.race and n == max(exercise.worlds):
            yield n, RACE


def main() -> None:
    """Reply to what standard input holds, line by line."""
    os.environ["DISTLAB_PROGRESS"] = os.devnull
    # processes that are started from here do not inherit the copy
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    read_plain_only()
    runner = Runner()
    for line in sys.stdin:
        reply = _reply(runner, json.loads(line))
        print(json.dumps(reply), file=replies, flush=True)


def _reply(runner: Runner, asked: dict[str, Any]) -> dict[str, Any]:
    """The reply to an answer, or to a call of it."""
    try:
        if "name" not in asked:
            return runner.call(asked["n"], asked["case"])
        cells = asked["cells"]
        if cells is not None:
            cells = [Cell(*cell) for cell in cells]
        return runner.begin(asked["name"], cells)
    except RanksFailed as error:
        return _failed(error)
    except DistlabError as error:
        return {"failed": [type(error).__name__, str(error), False]}


if __name__ == "__main__":
    main()
