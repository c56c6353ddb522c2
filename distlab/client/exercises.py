"""The exercises of the course: `check`, `hint`, `exercises` and `progress`. Runs on the notebook's kernel.

What is asked for is defined with checking.py, one call of an answer is made by simulated/trial.py on the ranks, and
verdict.py says what came of it.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
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
from distlab.measure.tables import Table
from distlab.plotting.units import count
from distlab.simulated import trial
from distlab.simulated.trial import Outcome
from distlab.text import refuse

FILE = ".distlab_progress.json"


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
        exercise: a name, one of `exercises()`, or an exercise of one's own (see TEACHING.md).
        answer: the function, or the value.

    Returns:
        the verdict, which shows itself: one line, or the smallest case that fails.

    Raises:
        ArgumentError: no exercise of that name; not a function, or one of other arguments; too few ranks.
    """
    found = _find(exercise)
    if isinstance(found, Question):
        result = _judge(found, answer)
    else:
        _check_function(found, answer)
        result = _try(found, answer, _cluster(found))
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
    more = f'\n(Hint {number} of {len(hints)}. The next one: distlab.hint("{exercise}", {number + 1}))'
    return _Text(hints[number - 1] + (more if number < len(hints) else f"\n(Hint {number} of {len(hints)}.)"))


def progress() -> Table:
    """The exercises that have been passed, by notebook, as the file beside the notebooks has them.

    The file is `.distlab_progress.json`, or what DISTLAB_PROGRESS names; it is never sent anywhere. Delete it to begin
    anew. On Colab it goes with the session. Runs on: the notebook's kernel.
    """
    passed, by_notebook = _passed(), {}
    for name, one in all_exercises().items():
        by_notebook.setdefault(one.notebook, []).append(name)
    rows = []
    for notebook, names in by_notebook.items():
        left = [name for name in names if name not in passed]
        rows.append((notebook, f"{len(names) - len(left)} of {len(names)}", left[0] if left else ""))
    return Table("", ("notebook", "passed", "next"), tuple(rows), "lrl")


class _Text(str):
    """A text that a notebook shows as it is, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _find(exercise: Any) -> Exercise | Question:
    if isinstance(exercise, (Exercise, Question)):
        return exercise
    known = all_exercises()
    if exercise not in known:
        near = difflib.get_close_matches(str(exercise), known, n=2)
        meant = f"Perhaps {' or '.join(map(repr, near))}? " if near else ""
        wrong_type = not isinstance(exercise, str)
        refuse("name", "that of an exercise", exercise, f"{meant}distlab.exercises() lists them.", wrong_type)
    return known[exercise]


def _judge(question: Question, value: Any) -> Verdict:
    if value is None or value is ...:
        return Verdict(question.name, False, attempted=False)
    try:
        right = question.judge(value)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError):
        right = False  # of a type that the judge does not expect
    if right is True:
        return Verdict(question.name, True, words=question.why)
    return Verdict(question.name, False, words=right or f"{value!r} is not it.")


def _check_function(exercise: Exercise, answer: Any) -> None:
    """Refuse what cannot be called as the reference is."""
    asked = inspect.signature(exercise.reference)
    call = f'distlab.check("{exercise.name}", fn) with a function fn{asked}'
    if not callable(answer):
        refuse("fn", "callable", answer, f"Call {call}.", wrong_type=True)
    try:
        own = inspect.signature(answer)
    except ValueError:  # one of C has no signature that can be read
        return
    try:
        own.bind(*asked.parameters)
    except TypeError:
        name = getattr(answer, "__name__", "fn")
        refuse("fn", f"a function fn{asked}", f"{name}{own}", f"Call {call}.", wrong_type=True)


def _cluster(exercise: Exercise) -> Cluster:
    """The cluster that runs, or a new one."""
    n = max(exercise.worlds)
    if Cluster.current is None:
        print(f"No cluster is running: the check makes Cluster({max(n, 4)}).")
        return Cluster(max(n, 4))
    if Cluster.current.n < n:
        advice = f"Call distlab.Cluster({n}), and check again."
        refuse("cluster", f"of {n} ranks or more for this exercise", Cluster.current.n, advice)
    return Cluster.current


def _try(exercise: Exercise, fn: Callable[..., Any], cluster: Cluster) -> Verdict:
    """Try the function in one world after the other, until it fails."""
    if getattr(getattr(fn, "__code__", None), "co_names", ()) == ("NotImplementedError",):  # a stub
        return Verdict(exercise.name, False, attempted=False)
    try:
        for n in exercise.worlds:
            cluster.call(trial.enter, n)
            for number, case in enumerate(exercise.cases):
                words = _case_words(n, case, exercise)
                outcomes = cluster.call(trial.call, exercise, number, fn, ranks=range(n), timeout=exercise.seconds)
                if wrong := _wrong(exercise, words, n, outcomes):
                    return Verdict(exercise.name, False, words=wrong)
            _leave(cluster)
    except RanksFailed as error:
        kinds = {failure.kind for failure in error.failures if not failure.consequence}
        if isinstance(error, RankError) and kinds == {"NotImplementedError"}:
            return Verdict(exercise.name, False, attempted=False)
        if isinstance(error, RankDied):
            cluster.ranks.rebuild()
        stuck = [exercise.stuck] if exercise.stuck and isinstance(error, (DeadlockError, RankTimeout)) else []
        return Verdict(exercise.name, False, words="\n".join([verdict.raised(words, error, n, cluster.n), *stuck]))
    finally:
        _leave(cluster)
    worlds = ", ".join(map(str, exercise.worlds[:-1])) + " and " if len(exercise.worlds) > 1 else ""
    ranks = f"{worlds}{exercise.worlds[-1]} rank{'s' * (exercise.worlds != (1,))}"
    return Verdict(
        exercise.name, True, words=f"{count(len(exercise.cases) * len(exercise.worlds), 'case')} with {ranks}."
    )


def _leave(cluster: Cluster) -> None:
    """Have all ranks in the world of the cluster again."""
    if any(cluster.call(trial.leave)):
        cluster.ranks.rebuild()


def _case_words(n: int, case: Any, exercise: Exercise) -> str:
    """Which case it is: "3 ranks and 7 numbers of float32"."""
    ranks = f"{n} rank{'s' * (n > 1)}"
    if exercise.given is not numbers:
        return ranks
    (tensor,) = numbers(0, n, case)
    return f"{ranks} and {count(len(tensor), 'number')} of {str(tensor.dtype).removeprefix('torch.')}"


def _wrong(exercise: Exercise, where: str, n: int, outcomes: list[Outcome]) -> str:
    """What is wrong with what the ranks did; "" for nothing."""
    if not all(one.right for one in outcomes):
        return verdict.wrong_values(where, outcomes)
    limits = exercise.limits and exercise.limits(n, *outcomes[0].size)
    return verdict.forbidden(outcomes, exercise.forbids) or (limits and verdict.too_much(where, outcomes, limits)) or ""


# --- what has been passed ---


def _file() -> Path:
    """Beside the notebook, wherever it has gone since it was started."""
    return Path(os.environ.get("DISTLAB_PROGRESS") or start_folder() / FILE)


def _passed() -> list[str]:
    """The names in the file; none where it cannot be read."""
    try:
        names = json.loads(_file().read_text())["passed"]
        return [name for name in names if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _remember(name: str) -> None:
    """Add a name to the file; without it where nothing can be written."""
    passed = _passed()
    if name not in passed:
        with contextlib.suppress(OSError):
            _file().write_text(json.dumps({"passed": [*passed, name]}, indent=1) + "\n")
