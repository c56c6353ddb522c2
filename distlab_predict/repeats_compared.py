"""Which pass of a micro-batch can stand for others: one that was like the one before it.

Called by repeats.py, in the process of a rank that is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distlab_predict.repeats_moved import is_like
from distlab_predict.repeats_noted import Noted, Place, left_by
from distlab_predict.torch_alike import are_alike

# passes of a stage for a micro-batch
FORWARD = "forward"
LOSS = "loss"
BACKWARD = "backward"
MOST_TRIES = 3  # micro-batches that differ from the one before, after which none is repeated


@dataclass
class Pattern:
    """A pass of a micro-batch, for others.

    Attributes:
        place: where it was.
        noted: what was noted there.
        is_sure: whether the next one was like it.
        tries: how often it was not.
    """

    place: Place
    noted: Noted
    is_sure: bool = False
    tries: int = 0


class Patterns:
    """The passes of stages that were noted, and those of them that can stand for others."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, str], Pattern] = {}  # by stage and pass

    def sure(self, stage: Any, name: str) -> Pattern | None:
        """The pattern of this pass; None if there is none that can stand for others."""
        pattern = self._found.get((stage, name))
        return pattern if pattern is not None and pattern.is_sure else None

    def forget(self, stage: Any) -> None:
        """Forget the passes of a stage."""
        for name in (FORWARD, LOSS, BACKWARD):
            self._found.pop((stage, name), None)

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()

    def compare(self, name: str, stage: Any, place: Place, noted: Noted) -> bool:
        """Keep what was noted for others, if the micro-batch before it was like it.

        Returns:
            False if too many micro-batches were different.
        """
        pattern = self._found.get((stage, name))
        tries = 0
        if pattern is not None:
            if _are_alike(pattern, place, noted) and self._leaves_nothing(name, stage, pattern):
                pattern.is_sure = True
                if len(noted.journal.changes) > len(pattern.noted.journal.changes):
                    pattern.place = place
                    pattern.noted = noted
                return True
            tries = pattern.tries + 1
        self._found[stage, name] = Pattern(place, noted, tries=tries)
        return tries < MOST_TRIES

    def _leaves_nothing(self, name: str, stage: Any, pattern: Pattern) -> bool:
        """Whether all memory of a micro-batch is free, or is the program's, after its last pass."""
        if name == LOSS or (name == FORWARD and stage.has_backward):
            return True
        passes = [(pattern.place, pattern.noted)]
        for other in (LOSS, FORWARD):
            before = self._found.get((stage, other))
            if before is not None and name == BACKWARD:
                passes.insert(0, (before.place, before.noted))
        return not left_by(passes)


def _are_alike(pattern: Pattern, place: Place, noted: Noted) -> bool:
    """Whether a pass had the same inputs as the pattern, and noted the same."""
    if not are_alike(pattern.place.inputs, place.inputs):
        return False
    return is_like(pattern.noted, pattern.place, noted, place)
