"""What some ranks have answered to what they were sent. Runs on the notebook's kernel, called by ranks.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distlab.compat.ipyparallel import answers


class Replies:
    """What some ranks have answered to what they were sent.

    Args:
        result: ipyparallel's AsyncResult. targets: its ranks.
    """

    def __init__(self, result: Any, targets: Sequence[int]):
        self.result = result
        self._answers = dict(zip(targets, answers(result), strict=True))

    def unfinished(self) -> list[int]:
        """The ranks that have not answered yet."""
        return [rank for rank, answer in self._answers.items() if not answer.done()]

    def so_far(self) -> dict[int, Any]:
        """The answers that are there; an exception object where ipyparallel reports one."""
        return {rank: a.exception() or a.result() for rank, a in self._answers.items() if a.done()}

    def within(self, seconds: float) -> dict[int, Any]:
        """The answers that come in time."""
        self.result.wait(seconds)
        return self.so_far()
