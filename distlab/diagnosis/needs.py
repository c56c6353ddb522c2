"""Why a rank that waits cannot go on.

Plain data. Made by proof.py and by the two files with its rules for messages and for new groups.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """What a waiting rank needs.

    Attributes:
        ranks: all or any of them.
        clash: why that can never happen, a sentence.
    """

    ranks: tuple[int, ...] = ()
    clash: str = ""
