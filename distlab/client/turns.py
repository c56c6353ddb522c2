"""A person types to the debuggers of ranks that are at breakpoints, one rank at a time. Runs on the notebook's kernel.

rank/debugger.py is the other side.
"""

import re
import time

from distlab.client import waiting
from distlab.compat.ipython import can_type
from distlab.text import rank_list
from distlab.wire.channel import ControlChannel
from distlab.wire.messages import COMPUTING

SAME_RANK = 5.0  # seconds for the next question of a rank that computes, before another one has its turn
LOOK = 0.1  # seconds between two looks at what it does


class Turns:
    """Whose debugger the person types to."""

    def __init__(self, channel: ControlChannel):
        self._channel, self._rank = channel, -1

    def take(self) -> None:
        """Ask the person for one line, and send it to a rank; where nobody can type, its breakpoint() raises.

        Raises:
            KeyboardInterrupt: the person wants no more of it: `q`, or an interrupt.
        """
        channel = self._channel
        if not can_type():
            for rank in list(channel.asks):
                channel.type(rank, None)
            return
        if self._greet():
            return
        if self._rank not in channel.asks:
            self._rank = min(channel.asks)
        if (line := self._typed(channel.asks[self._rank])) is not None:
            channel.type(self._rank, line + "\n")
            self._expect({self._rank})

    def _greet(self) -> bool:
        """Answer each breakpoint() that asks whether somebody is there; whether there was one."""
        arrived = {rank for rank, said in self._channel.asks.items() if not said}
        for rank in arrived:
            self._channel.type(rank, "")
        self._expect(arrived)
        return bool(arrived)

    def _expect(self, ranks: set[int]) -> None:
        """Wait for the next questions of ranks that were answered, as long as they compute and nobody has to wait."""
        deadline = time.monotonic() + SAME_RANK
        while (silent := ranks - {*self._channel.asks}) and time.monotonic() < deadline:
            self._channel.hear(LOOK)
            answers = self._channel.ask(silent).values()
            if any(answer.status and answer.status.doing != COMPUTING for answer in answers):
                return

    def _typed(self, said: str) -> str | None:
        """The line for this rank; None after a command that is not the rank's own."""
        text, end, prompt = said.rpartition("\n")
        print(text, end=end, flush=True)
        try:
            with waiting.allowed():
                line = input(prompt)
        except EOFError:
            line = "quit"
        own = prompt.startswith("(rank")
        if own and line.strip() in ("q", "quit", "exit"):
            raise KeyboardInterrupt
        if own and (other := re.fullmatch(r"\s*rank\s+(\d+)\s*", line)):
            self._channel.asks[self._rank] = prompt
            self._turn_to(int(other[1]))
            return None
        return line

    def _turn_to(self, rank: int) -> None:
        self._channel.hear(0)  # some may have come while the person was typing
        self._greet()
        if rank in self._channel.asks:
            self._rank = rank
        else:
            print(f"rank {rank} is not at a breakpoint: {rank_list(sorted(self._channel.asks))} can be chosen")

    def leave(self) -> None:
        """End every debugger: the person has left, or the cell is over."""
        for rank in list(self._channel.ends):
            self._channel.type(rank, None)
