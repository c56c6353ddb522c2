"""`check`, `hint` and `exercises`, and the verdict. Runs on the notebook's kernel.

exercises.py defines what an exercise is, trial.py makes each call of an answer on the ranks, and
judging.py compares what it did with what the reference did, and finds the words. A verdict is one
line when the answer passes, and the smallest case that fails when it does not.
"""

import base64
import contextlib
import difflib
import functools
import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from distlab.arguments import refuse, whole_number
from distlab.checking import judging, progress, trial
from distlab.checking.exercises import Exercise, Question, all_exercises
from distlab.checking.observed import from_bytes
from distlab.errors import RanksFailed
from distlab.notebook import display, paragraphs
from distlab.notebook.cluster import Cluster
from distlab.traces.trace import Trace
from distlab.wire.pickling import pickle_module_by_value

LABEL = 9  # columns of what stands before the values of a rank: "rank 0   "
GREEN = "#1b5e20"  # behind "passed"
RED = "#8e1b1b"  # behind "not yet"
RANKS_OF_A_CHECK = 4  # of a cluster that a check starts, or more if the exercise needs them


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        name: of the exercise.
        passed: whether the answer is right.
        attempted: False for a stub that only raises NotImplementedError.
        words: what is wrong, or what a right answer did.
        run: a right answer made of messages, in its largest world on a simulated network; a
            notebook draws it.
    """

    name: str
    passed: bool
    attempted: bool = True
    words: str = ""
    run: Trace | None = None

    def __repr__(self) -> str:
        state = f"{self.name}: {self._state()}"
        if not self.words:
            return state
        return f"{state}. {self.words}"

    def _state(self) -> str:
        if not self.attempted:
            return "not attempted"
        return "passed" if self.passed else "not yet"

    def _repr_html_(self) -> str | None:
        if not self.attempted:
            return None
        color = GREEN if self.passed else RED
        look = f"background:{color};color:#fff;border-radius:3px"
        badge = f'<span style="{look}">&nbsp;{self._state()}&nbsp;</span>'
        parts = [part for part in (self.words, self._next_step()) if part]
        lines = html.escape("\n".join(parts)).split("\n")
        below = paragraphs.hanging(lines[1:], LABEL)
        title = html.escape(_title(self.name))
        text = f"{title}: {badge} {lines[0]}{below}"
        return f'<pre style="{display.wrapped()}">{text}</pre>{self._picture()}'

    def _picture(self) -> str:
        """The picture of the run as HTML; "" without one."""
        if self.run is None:
            return ""
        drawn = self.run._repr_png_()
        if drawn is None:
            return ""
        png, about = drawn
        data = base64.b64encode(png).decode()
        alt = html.escape(repr(self.run))
        look = f'alt="{alt}" width="{about["width"]}"'
        return f'<img src="data:image/png;base64,{data}" {look} style="max-width:100%">'

    def _next_step(self) -> str:
        """What to do now: the next exercise of the lab, or how to get a hint; "" for neither."""
        known = all_exercises()
        if self.name not in known:
            return ""
        own = known[self.name]
        if not self.passed:
            return f'Stuck? distlab.hint("{self.name}")' if own.texts("Hint") else ""
        lab = [name for name, one in known.items() if one.notebook == own.notebook]
        following = lab.index(self.name) + 1
        if following == len(lab):
            return ""
        return f"Next: {_title(lab[following])}"


def exercises() -> list[str]:
    """The names of all exercises, in the order of the course. Runs on: the notebook's kernel."""
    return list(all_exercises())


def check(exercise: str | Exercise | Question, answer: Any) -> Verdict:
    """Try an answer to an exercise on real ranks, next to a reference, and say how it went.

    A function is called in worlds of 1, 2, 3 and 4 ranks (some exercises have others), made from
    the ranks of the running cluster, with several sizes and dtypes; where no cluster runs, one is
    started, and stays. Whatever the function does, the cluster can be used afterwards. What it
    prints is shown only if it fails. An answer that is a value is judged in the notebook's kernel.

    Runs on: the notebook's kernel; the function runs on the ranks.

    Args:
        exercise: a name, one of `exercises()`, or an exercise of your own (see TEACHING.md).
        answer: the function, or the value.

    Returns:
        the verdict; its repr is one line, or the smallest case that fails. If a right answer is
        made of messages, a notebook also draws what its ranks sent; some are timed beside ours and
        the simulated library's.

    Raises:
        ArgumentError: no exercise of that name; not a function; too few ranks.
    """
    found = exercise if isinstance(exercise, (Exercise, Question)) else _find(exercise)
    seconds = None
    if isinstance(found, Question):
        verdict = _judge(found, answer)
    else:
        verdict = _try(found, answer)
        if verdict.run and found.race:
            seconds = verdict.run.seconds
    if verdict.passed:
        progress.remember_passed(verdict.name, seconds)
    return verdict


def hint(exercise: str, number: int = 1) -> str:
    """A hint for an exercise; the higher its number, the more it gives away.

    Runs on: the notebook's kernel.

    Raises:
        ArgumentError: no exercise of that name, or no hint of that number.
    """
    found = _find(exercise)
    hints = found.texts("Hint")
    whole_number("number", number, 1, len(hints), f'Call distlab.hint("{exercise}").')
    text = hints[number - 1]
    place = f"Hint {number} of {len(hints)} for {found.title}."
    if number < len(hints):
        place += f' For the next, call distlab.hint("{exercise}", {number + 1})'
    return _Text(f"{text}\n({place})")


def _title(name: str) -> str:
    """The number and title of an exercise; its name if it has none, or is not known here."""
    known = all_exercises()
    if name in known:
        return known[name].title
    return name


class _Text(str):
    """A text that a notebook shows without quotes."""

    __repr__ = str.__str__


def _find(name: Any) -> Exercise | Question:
    """The exercise of a name; ArgumentError if there is none, with one that is alike."""
    known = all_exercises()
    if name in known:
        return known[name]
    rule = "that of an exercise"
    advice = "distlab.exercises() lists them."
    if not isinstance(name, str):
        refuse("name", rule, name, advice, wrong_type=True)
    alike = difflib.get_close_matches(name, known, n=1)
    if alike:
        advice = f'Did you mean "{alike[0]}"? {advice}'
    refuse("name", rule, name, advice)


def _judge(question: Question, value: Any) -> Verdict:
    """The verdict on a value."""
    if value is None or value is ...:
        return Verdict(question.name, False, attempted=False)
    try:
        found = question.judge(value)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError):
        found = f"{value!r} is not the answer."  # of a type that the judge does not expect
    if found is True:
        why = " ".join(question.texts("Why"))
        return Verdict(question.name, True, words=why)
    return Verdict(question.name, False, words=found)


def _try(exercise: Exercise, fn: Callable[..., Any]) -> Verdict:
    """Try the function in one world after the other, until it fails."""
    if isinstance(fn, judging.Elsewhere):
        found = judging.judge(exercise, fn.world)
        return Verdict(exercise.name, found.passed, words=found.words, run=found.run)
    if not callable(fn):
        advice = f'Call distlab.check("{exercise.name}", fn).'
        refuse("fn", "a function", fn, advice, wrong_type=True)
    if _is_stub(fn):
        return Verdict(exercise.name, False, attempted=False)
    cluster = _cluster(exercise)
    most = max(exercise.worlds)
    if cluster.n < most:
        advice = f"Call distlab.Cluster({most}), and check again."
        refuse("cluster", f"of {most} ranks or more for this exercise", cluster.n, advice)
    pickle_module_by_value(exercise.function)
    found = judging.judge(exercise, functools.partial(_world, cluster, exercise, fn))
    return Verdict(exercise.name, found.passed, words=found.words, run=found.run)


def _is_stub(fn: Callable[..., Any]) -> bool:
    """Whether a function only raises NotImplementedError: it is the first name in its code."""
    code = getattr(fn, "__code__", None)
    names: tuple[str, ...] = getattr(code, "co_names", ())
    return bool(names) and names[0] == "NotImplementedError"


@contextlib.contextmanager
def _world(
    cluster: Cluster, exercise: Exercise, fn: Callable[..., Any], n: int
) -> Iterator[Callable[[Any], judging.Pair]]:
    """Ranks 0 to n - 1 as a world of their own, in which cases are tried.

    In each, the reference is called first, and then `fn`.
    """
    ranks = range(n)

    def call(case: Any) -> judging.Pair:
        try:
            tried = functools.partial(cluster.call, ranks=ranks, timeout=exercise.seconds)
            replies = tried(trial.call_with_case, exercise, case, True, fn)
        except RanksFailed as error:
            raise judging.answer_failed(error) from error
        expected = []
        actual = []
        for of_reference, of_answer in replies:
            expected.append(from_bytes(of_reference))
            actual.append(from_bytes(of_answer))
        return expected, actual

    try:
        cluster.call(trial.enter_world, n)
        yield call
    finally:
        if not all(cluster.call(trial.leave_world, ranks=ranks)):
            cluster.ranks.rebuild()


def _cluster(exercise: Exercise) -> Cluster:
    """The running cluster, or one that is started for the check; it stays for what follows."""
    if Cluster.current is not None:
        return Cluster.current
    n = max(RANKS_OF_A_CHECK, *exercise.worlds)
    print(f"No cluster was running here, so the check starts one, distlab.Cluster({n}).")
    return Cluster(n)
