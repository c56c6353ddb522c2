"""Decides about submitted answers, in a process of its own that `for_nbgrader` starts and, if need be, ends.

Standard input has one JSON object: the cells, and the names of the exercises. Standard output gets one JSON line for
each; no rank holds that pipe, and no code of a student's runs here, so that none can write a verdict.
"""

import json
import os
import sys

import distlab
from distlab.checking import Question, all_exercises
from distlab.errors import DistlabError
from distlab_course.classroom.submission import Answer, Cell, Refused, import_all, is_stub, needed_for, value_on_rank

RANKS = 4  # of the lessons
SECONDS = 10.0  # for finding a value, as for one call of a function
IMPORTING = 100.0  # seconds for what an answer imports


def main() -> None:
    """Judge what standard input holds, exercise by exercise."""
    os.environ["DISTLAB_PROGRESS"] = os.devnull
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # which processes that are started from here do not get
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    given = json.load(sys.stdin)
    submitted, lab = ([Cell(*cell) for cell in given[part]] for part in ("submitted", "lab"))
    passed = False
    for name in given["asked"]:
        try:
            if name not in all_exercises():
                raise Refused("no exercise of this name is installed where it is marked.")
            cells = needed_for(name, submitted, lab)
            passed, words = (False, f"{name}: not attempted") if is_stub(name, cells) else judge(name, cells, passed)
        except Refused as error:
            passed, words = False, f"{name}: {error}"
        print(json.dumps([passed, words]), file=results, flush=True)


def judge(name: str, cells: list[Cell], again: bool) -> tuple[bool, str]:
    """Whether an answer is right, and what to tell the student.

    Args:
        again: whether to use the ranks of the answer before; those that ran a wrong one make way for new processes.
    """
    cluster = distlab.Cluster.current if again and distlab.Cluster.current else distlab.Cluster(RANKS)
    try:
        cluster.run(import_all, cells, timeout=IMPORTING)
        answer = Answer(cells, name)
        if isinstance(all_exercises()[name], Question):
            answer = json.loads(cluster.run(value_on_rank, cells, name, ranks=[0], timeout=SECONDS)[0])
        verdict = distlab.check(name, answer)
        return verdict.passed, repr(verdict)
    except DistlabError as error:
        return False, f"{name}: {error}"


if __name__ == "__main__":
    main()
