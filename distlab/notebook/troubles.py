"""What goes wrong in distlab itself, on the watchdogs of ranks: a person reads it once.

Runs on the notebook's kernel, called by ranks.py.
"""

import sys
from collections.abc import Mapping

from distlab.notebook import paragraphs


class Troubles:
    """The troubles of one cluster's watchdogs, of which the first one is shown.

    Attributes:
        shown: whether one was shown.
    """

    def __init__(self) -> None:
        self.shown = False

    def show(self, unseen: Mapping[int, str], others: Mapping[int, str]) -> None:
        """Show in a line that something goes wrong on a watchdog, if none was shown before.

        Args:
            unseen: why some ranks could not say what they are doing, by rank.
            others: what else went wrong, by rank.
        """
        troubles = unseen or others
        if not troubles or self.shown:
            return
        self.shown = True
        rank, error = next(iter(troubles.items()))
        words = f"distlab itself failed on rank {rank}"
        if unseen:
            words = f"distlab cannot see what rank {rank} is doing, so it finds no deadlocks"
        paragraphs.say(f"{words}: {error}", sys.stderr)
