"""A preemption as a person asks for it: which ranks, when, and how long they have.

Made by notebook/preempting.py and scripts/preempting.py, and sent to every rank, where
rank/preempting.py reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

GRACE = 5.0  # seconds between SIGTERM and SIGKILL, unless a person says otherwise
MOST_LETTERS = 100  # of an exception's text


@dataclass(frozen=True)
class Order:
    """SIGTERM for some ranks, and SIGKILL for those that have not ended after the grace time.

    Attributes:
        ranks: those that get it.
        after: seconds after the program began; None for an order that counts steps.
        step: how many optimizer steps a rank has finished when it gets the signal; None for an
            order that counts seconds.
        whole_group: whether the child processes of the ranks get it, too.
    """

    ranks: tuple[int, ...]
    after: float | None = None
    step: int | None = None
    whole_group: bool = False


def first_line(kind: str, message: str) -> str:
    """What was raised, in a line: "SystemExit: 3", or "ValueError" without a text."""
    text, _, _ = message.partition("\n")
    return f"{kind}: {text[:MOST_LETTERS]}".rstrip(": ")
