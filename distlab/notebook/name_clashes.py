"""What is said when a function that was sent uses a name that has two values.

Called by cluster.py on the notebook's kernel; rank/clashes.py finds the names on the ranks.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from distlab.notebook import paragraphs
from distlab.words import rank_list

State = tuple[int, tuple[tuple[int, int], ...]]  # marks of the notebook's value, and of the ranks'


class NameClashes:
    """The names of which this cluster's person has been told."""

    def __init__(self) -> None:
        self._told: dict[str, State] = {}

    def show(self, fn: Callable[..., Any], ranks: Sequence[int], replies: Sequence[Any]) -> None:
        """Say once of each name that it has two values, and again when one of the two is another.

        Args:
            fn: the function that was called.
            ranks: that have called it.
            replies: one [Reply, *buffers] of each of them.
        """
        marks: dict[str, dict[int, int]] = {}
        for rank, (reply, *_) in zip(ranks, replies, strict=True):
            for name, mark in reply.clashes:
                marks.setdefault(name, {})[rank] = mark
        if not marks:
            return
        own = getattr(getattr(fn, "func", fn), "__globals__", {})
        for name, by_rank in marks.items():
            state = (id(own.get(name)), tuple(by_rank.items()))
            if self._told.get(name) != state:
                self._told[name] = state
                paragraphs.say(words_of(name, list(by_rank)), sys.stderr)


def words_of(name: str, ranks: list[int]) -> str:
    """What is said of a name that has another value on these ranks."""
    return (
        f"`{name}` has one value in the notebook and another on {rank_list(ranks)}, and the "
        f"function used the notebook's. Rename one of the two, or send the notebook's to the ranks "
        f'with cluster.push({{"{name}": {name}}}).'
    )
