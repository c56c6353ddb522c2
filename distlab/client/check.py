"""`check`, `hint`, `exercises` and `progress`. Runs on the notebook's kernel.

checking.py defines what an exercise is, simulated/trial.py makes each call of an answer on the ranks, and verdict.py
says what came of it.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distlab.checking import Exercise, Question, all_exercises, numbers
from distlab.client import verdict
from distlab.client.cluster import Cluster
from distlab.client.verdict import Verdict
from distlab.compat.ipython import start_folder
from distlab.errors import DeadlockError, RankDied, RankError, RanksFailed, RankTimeout
from distlab.plotting.units import Table, count
from distlab.simulated import trial
from distlab.text import grouped, refuse
from distlab.wire.payload import bring_own_module


def exercises() -> list[str]:
    """The names of all exercises, in the order of the course. Runs on: the notebook's kernel."""
    return list(all_exercises())


def check(exercise: str | Exercise | Question, answer: Any) -> Verdict:
    """Try an answer to an exercise on real ranks, beside a reference, and say what came of it.

    A function is called on worlds of 1, 2, 3 and 4 ranks (some exercises have others), made of the ranks of the
    running cluster, with several sizes and dtypes. Whatever it does there, the cluster can be used afterwards. What it
    prints is shown only where it fails. An answer that is a value is judged here.

    Runs on: the notebook's kernel; the function runs on the ranks.

    Args:
        exercise: a name, one of `exercises()`, or an exercise of your own (see TEACHING.md).
        answer: the function, or the value.

    Returns:
        the verdict, which shows itself: one line, or the smallest case that fails.

    Raises:
        ArgumentError: no exercise of that name; not a function; too few ranks.
    """
    found = exercise if isinstance(exercise, (Exercise, Question)) else _find(exercise)
    result = _judge(found, answer) if isinstance(found, Question) else _try(found, answer)
    if result.passed:
        _remember(found.name)
    return result


def hint(exercise: str, number: int = 1) -> str:
    """A hint for an exercise; the higher its number, the more it gives away. Runs on: the notebook's kernel.

    Raises:
        ArgumentError: no exercise of that name, or no hint of that number.
    """
    hints = _find(exercise).hints
    if number not in range(1, len(hints) + 1):
        refuse("number", f"from 1 to {len(hints)} for {exercise}", number, f'Call distlab.hint("{exercise}").')
    more = f' The next one: distlab.hint("{exercise}", {number + 1})' if number < len(hints) else ""
    return _Text(f"{hints[number - 1]}\n(Hint {number} of {len(hints)}.{more})")


def progress() -> Table:
    """The exercises that have been passed, by notebook, as the file beside the notebooks has them.

    The file is `.distlab_progress.json`, or what DISTLAB_PROGRESS names; it is never sent anywhere. Delete it to begin
    again. On Colab it is lost with the session. Runs on: the notebook's kernel.
    """
    passed, rows = _passed(), []
    for notebook, names in grouped((one.notebook, name) for name, one in all_exercises().items()).items():
        left = [name for name in names if name not in passed]
        rows.append((notebook, f"{len(names) - len(left)} of {len(names)}", left[0] if left else ""))
    return Table("", ("notebook", "passed", "next"), tuple(rows), "lrl")


class _Text(str):
    """A text that a notebook shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _find(name: Any) -> Exercise | Question:
    known = all_exercises()
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=2)
        advice = f"Perhaps {' or '.join(map(repr, near))}? distlab.exercises() lists them." if near else ""
        advice = advice or "distlab.exercises() lists them; with an older installation of distlab, install it again."
        refuse("name", "that of an exercise", name, advice, wrong_type=not isinstance(name, str))
    return known[name]


def _judge(question: Question, value: Any) -> Verdict:
    if value is None or value is ...:
        return Verdict(question.name, False, attempted=False)
    try:
        words = question.judge(value)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError):  # of a type that the judge does not expect
        words = f"{value!r} is not it."
    passed = words is True
    return Verdict(question.name, passed, words=" ".join(question.texts("Why")) if passed else words)


def _try(exercise: Exercise, fn: Callable[..., Any]) -> Verdict:
    """Try the function in one world after the other, until it fails."""
    if not callable(fn):
        refuse("fn", "a function", fn, f'Call distlab.check("{exercise.name}", fn).', wrong_type=True)
    if getattr(getattr(fn, "__code__", None), "co_names", ()) == ("NotImplementedError",):  # a stub
        return Verdict(exercise.name, False, attempted=False)
    cluster = _cluster(max(exercise.worlds))
    bring_own_module(exercise.function)
    try:
        for n in exercise.worlds:
            cluster.call(trial.enter, n)
            for number, case in enumerate(exercise.cases):
                where = _case_words(n, case, exercise)
                outcomes = cluster.call(trial.call, exercise, number, fn, ranks=range(n), timeout=exercise.seconds)
                if wrong := verdict.wrong(where, outcomes, exercise):
                    return Verdict(exercise.name, False, words=wrong)
            _leave(cluster)
    except RanksFailed as error:
        kinds = {failure.kind for failure in error.failures if not failure.consequence}
        if isinstance(error, RankError) and kinds == {"NotImplementedError"}:
            return Verdict(exercise.name, False, attempted=False)
        if isinstance(error, RankDied):
            cluster.ranks.rebuild()
        advice = exercise.texts("Stuck") if isinstance(error, (DeadlockError, RankTimeout)) else []
        return Verdict(exercise.name, False, words="\n".join([verdict.raised(where, error, n, cluster.n), *advice]))
    finally:
        _leave(cluster)
    *first, last = exercise.worlds
    worlds = f"{', '.join(map(str, first))} and {last} ranks" if first else count(last, "rank")
    cases = count(len(exercise.cases) * len(exercise.worlds), "case")
    return Verdict(exercise.name, True, words=f"{cases} with {worlds}.")


def _cluster(n: int) -> Cluster:
    """The running cluster, or a new one, of at least `n` ranks."""
    if Cluster.current is None:
        print(f"No cluster is running: the check makes Cluster({max(n, 4)}).")
        return Cluster(max(n, 4))
    if Cluster.current.n < n:
        advice = f"Call distlab.Cluster({n}), and check again."
        refuse("cluster", f"of {n} ranks or more for this exercise", Cluster.current.n, advice)
    return Cluster.current


def _leave(cluster: Cluster) -> None:
    """Have all ranks in the world of the cluster again."""
    if any(cluster.call(trial.leave)):
        cluster.ranks.rebuild()


def _case_words(n: int, case: Any, exercise: Exercise) -> str:
    """Which case it is: "3 ranks and 7 numbers of float32"."""
    if exercise.given is not numbers:
        return count(n, "rank")
    (tensor,) = numbers(0, n, case)
    return f"{count(n, 'rank')} and {count(len(tensor), 'number')} of {str(tensor.dtype).removeprefix('torch.')}"


# --- what has been passed ---


def _file() -> Path:
    """Beside the notebook, wherever its kernel has changed to since."""
    return Path(os.environ.get("DISTLAB_PROGRESS") or start_folder() / ".distlab_progress.json")


def _passed() -> list[str]:
    """The names in the file; none where it cannot be read."""
    try:
        return [name for name in json.loads(_file().read_text())["passed"] if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _remember(name: str) -> None:
    """Add a name to the file; without it where nothing can be written."""
    if name not in (passed := _passed()):
        with contextlib.suppress(OSError):
            _file().write_text(json.dumps({"passed": [*passed, name]}, indent=1) + "\n")
