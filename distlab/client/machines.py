"""The machines that the ranks run on: whose process numbers are known here, whose memory, whose clock.

Runs on the notebook's kernel, called by ranks.py; what this machine does not know of another one, the rank is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from distlab.wire.channel import ControlChannel
from distlab.wire.messages import CLOCK, MEMORY, Offset
from distlab.wire.rendezvous import this_machine, used_megabytes

ANSWER_SECONDS = 0.5
ROUNDS = 20  # questions to a rank for the time that its clock shows


class Machines:
    """Where the processes of ranks are.

    Args:
        channel: to their watchdogs. pids: their process numbers. names: of their machines, as `this_machine` has them.
    """

    def __init__(self, channel: ControlChannel, pids: Sequence[int], names: Sequence[tuple[str, str]]):
        self._channel, self._pids, self.names = channel, pids, list(map(tuple, names))

    def local_pid(self, rank: int) -> int | None:
        """Process number of a rank, where it has one on this machine; None on another one."""
        return self._pids[rank] if self.names[rank] == this_machine() else None

    def megabytes(self, ranks: Iterable[int]) -> dict[int, float | None]:
        """Memory of some ranks that live; None of one that does not say."""
        found = {rank: self.local_pid(rank) for rank in ranks}
        told = self._channel.ask([rank for rank, pid in found.items() if pid is None], ANSWER_SECONDS, MEMORY)
        far = {rank: answer.megabytes for rank, answer in told.items()}
        return {rank: far.get(rank) if pid is None else used_megabytes(pid) for rank, pid in found.items()}

    def clock_offsets(self, ranks: Iterable[int]) -> dict[int, Offset]:
        """How much the clocks of ranks are ahead of this machine's; of ranks whose clock is another one.

        Of several questions the one that was answered soonest is believed: the rank looked at its clock at some time
        between question and answer.

        Source: F. Cristian, Probabilistic clock synchronization, 1989.
        """
        far = [rank for rank in ranks if self.names[rank][0] != this_machine()[0]]
        found: dict[int, Offset] = {}
        for rank in far * ROUNDS:
            asked = time.time_ns()
            answer = self._channel.ask([rank], want=CLOCK).get(rank)
            half = (time.time_ns() - asked) / 2
            if answer is not None and (rank not in found or half / 1e9 < found[rank].error):
                found[rank] = Offset((answer.clock - asked - half) / 1e9, half / 1e9)
        return found
