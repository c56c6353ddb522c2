"""One clock for ranks on several machines: how far their clocks are apart, from messages there and back.

Pure functions, called by trace/record.py and by whoever reads a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Round = tuple[int, int, int, int]  # sent here, received there, sent there, received here; each in ns of its own clock


@dataclass(frozen=True)
class Offset:
    """How much a rank's clock is ahead of that of the trace: `seconds`, right to within `error` seconds.

    `drift` is what it gains in a second, from a second comparison after the trace; `at` the time, in ns of the rank's
    clock, when the first was made.
    """

    seconds: float = 0.0
    error: float = 0.0
    drift: float = 0.0
    at: int = 0

    def correct(self, time: int) -> int:
        """A time in ns of the rank's clock as one of the trace's clock."""
        return time - round(self.seconds * 1e9 + self.drift * (time - self.at))


def estimate(before: Sequence[Round], after: Sequence[Round] = ()) -> Offset:
    """How much the other clock is ahead, from messages there and back; `after` the trace, too, to know the drift.

    The quickest round is believed: its message there left `there - here` late by at most what the round took.

    Source: D. Mills, RFC 5905 (NTP), section 8; F. Cristian, Probabilistic clock synchronization (1989).
    """
    ahead, error, at = _best(before)
    drift = 0.0
    if after:
        later, _, end = _best(after)
        drift = (later - ahead) / (end - at)
    return Offset(ahead / 1e9, error / 1e9, drift, at)


def _best(rounds: Sequence[Round]) -> tuple[float, float, int]:
    """Of the quickest round, in ns: how much the other clock is ahead, the largest error of that, and when it was."""
    sent, arrived, answered, received = min(rounds, key=lambda r: (r[3] - r[0]) - (r[2] - r[1]))
    on_the_way = (received - sent) - (answered - arrived)
    return ((arrived - sent) + (answered - received)) / 2, on_the_way / 2, arrived
