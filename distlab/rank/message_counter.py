"""How many messages of each kind a rank has begun, and which of them it has dropped.

Runs on every rank: log.py and hooks.py count, and status.py reports. From these numbers of all
ranks, the notebook's kernel knows which messages never meet.
"""

from typing import Any, NamedTuple

# Kinds of messages that are reported, the newest; all are counted. Of a kind that is left out,
# nothing is known, and no message that may depend on it is called unmatched
# (RankStatus.more_traffic).
MOST_KINDS = 1000


class Kind(NamedTuple):
    """What messages are counted by; the peer is a number in the group, or ANY_SOURCE."""

    is_send: bool
    group: str
    peer: int
    tag: int


class MessageCounter:
    """Counts messages by their `Kind`.

    Attributes:
        begun: how many of each kind were begun, the newest kind last.
        dropped: the numbers of the messages whose Work was dropped before its end was waited for.
    """

    def __init__(self) -> None:
        self.begun: dict[Kind, int] = {}
        self.dropped: dict[Kind, list[int]] = {}

    def count(self, kind: Kind) -> int:
        """Count a message, of a kind that is now the newest; its number among those of the kind."""
        number = self.begun.pop(kind, 0) + 1
        self.begun[kind] = number
        return number

    def take_back(self, kind: Kind) -> None:
        """Count a message of this kind no longer, which was refused before it began."""
        if kind in self.begun:
            self.begun[kind] -= 1

    def received_from(self, kind: Kind, source: int) -> None:
        """Count a message that was received from any rank as one from this rank of the group."""
        self.begun[kind] -= 1
        self.count(Kind(False, kind.group, source, kind.tag))

    def mark_dropped(self, kind: Kind, number: int) -> None:
        """Remember that the Work of a message was dropped.

        Runs on: any thread, at any time, because Python drops objects when it likes.
        """
        self.dropped.setdefault(kind, []).append(number)

    def forget_group(self, name: str) -> None:
        """Forget the messages in a group."""
        _forget_group_in(self.begun, name)
        _forget_group_in(self.dropped, name)


def _forget_group_in(by_kind: dict[Kind, Any], group: str) -> None:
    for kind in list(by_kind):  # a Work may be dropped meanwhile, on any thread
        if kind.group == group:
            del by_kind[kind]
