"""Which way a recorded program goes where it asks for a truth that only data decides.

Called by rank_children.py, in the process of a rank that is recorded. Programs compare losses: to
keep the best model, to stop early, to assert that all is well. Each such line gets an answer here,
and branches.py then records the program with the other one, to see whether its step is the same.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

from torch import Tensor

from distlab.wire.source import Line, line_of, runs_learners_code
from distlab_predict import assertions, no_data, torch_known
from distlab_predict.nodes import Branch
from distlab_predict.torch_lines import Lines
from distlab_predict.torch_patches import put

# A line that asks more often than this decides how long the program runs: that is enough of it.
MOST_ASKED = 64


class Decisions:
    """Answers of False, and lines that have asked for them.

    An `assert` holds, as in a training that works.

    Args:
        rank: as which the program runs.
        true: lines, such as "train.py:12", that get True instead.
    """

    def __init__(self, rank: int, true: tuple[str, ...] = ()):
        self._rank = rank
        self._true = true
        self._here = Lines().here
        self._asked: dict[str, Branch] = {}
        self._times: Counter[str] = Counter()

    def answer(self) -> bool:
        """The answer for the line of the program that asks now.

        Raises:
            NotImplementedError: no line of the program asks.
            SystemExit: it has asked too often.
        """
        line = self._here()
        if not line:
            raise NotImplementedError(no_data.NEEDED)
        holds = _of_assertion(sys._getframe(1))
        if holds is not None:
            return holds
        self._times[line] += 1
        if self._times[line] > MOST_ASKED:
            raise SystemExit(0)
        if line not in self._asked:
            self._asked[line] = Branch(line, self._rank, _lines_on_stack(sys._getframe(1)))
        return line in self._true

    @property
    def number(self) -> int:
        """How many questions there were."""
        return sum(self._times.values())

    @property
    def branches(self) -> tuple[Branch, ...]:
        """Where the program has asked, in the order of its first questions."""
        return tuple(self._asked.values())

    def in_words(self) -> list[str]:
        """Which answers the program got, a sentence for each line."""
        words = []
        for line in self._asked:
            words.append(f"{line} depends on data, and was taken as {line in self._true}.")
        return words


def install(decisions: Decisions) -> None:
    """Have numbers and tensors without data ask here where a program takes them for a truth."""
    no_data.decide_by(decisions.answer)
    put(Tensor, "__bool__", _truth(Tensor.__bool__, decisions.answer))


def _truth(own: Callable[[Tensor], bool], answer: Callable[[], bool]) -> Callable[[Tensor], bool]:
    @functools.wraps(own)
    def call(tensor: Tensor) -> bool:
        try:
            return own(tensor)
        except torch_known.NEEDS_VALUES:
            return answer()

    return call


def _of_assertion(frame: FrameType | None) -> bool | None:
    """The answer with which an `assert` of the learner's holds; None if none asks."""
    while frame is not None and not runs_learners_code(frame):
        frame = frame.f_back
    return None if frame is None else assertions.needed(frame)


def _lines_on_stack(frame: FrameType | None) -> tuple[Line, ...]:
    """The learner's own lines that have led here, outermost first."""
    lines = []
    while frame is not None:
        if runs_learners_code(frame):
            code = frame.f_code
            lines.append(line_of(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(reversed(lines))
