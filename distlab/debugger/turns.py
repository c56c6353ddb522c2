"""A person types to the debuggers of ranks that are at breakpoints, one rank at a time.

Runs on the notebook's kernel, called by cell.py; debugger/console.py is the other side.
"""

import re
import time

from distlab.notebook import interrupts, seconds
from distlab.wire.channel import ControlChannel
from distlab.wire.messages import COMPUTING
from distlab.words import rank_list

WAIT = 5.0  # seconds for the next question of a rank that computes, before another one has its turn
LOOK = 0.1  # seconds between two looks at what it does


class Turns:
    """Whose debugger the person types to, while ranks of one cell are at breakpoints."""

    def __init__(self, channel: ControlChannel):
        self._channel = channel
        self._rank = -1  # of the last turn, or the one that the person has chosen for the next
        # the ranks of which the person knows that they have stopped
        self._stopped: set[int] = set()

    def take(self) -> None:
        """Ask the person for one line, and send it to a rank.

        It is the rank of the last turn, if its debugger wants another line.

        Raises:
            KeyboardInterrupt: the person wants no more of it: `q`, or an interrupt.
        """
        channel = self._channel
        rank = self._rank
        if rank not in channel.asks:
            rank = min(channel.asks)
        text, end, prompt = channel.asks[rank].rpartition("\n")
        print(text, end=end, flush=True)
        self._announce(rank)
        try:
            with interrupts.allowed():
                line = input(prompt)
        except EOFError:
            line = "quit"
        # the debugger's own prompt, at which these words are commands
        if prompt.startswith("(rank"):
            if line.strip() in ("q", "quit", "exit"):
                raise KeyboardInterrupt
            other = re.fullmatch(r"\s*rank\s+(\d+)\s*", line)
            if other:
                channel.asks[rank] = prompt  # what came before it has been shown
                self._rank = _rank_after_choice(channel, int(other[1]), rank)
                return
        channel.answer_debugger(rank, line + "\n")
        _wait_for_question(channel, rank)
        self._rank = rank

    def _announce(self, rank: int) -> None:
        """Say which ranks have stopped since the last turn, beside the one that has its turn."""
        stopped = set(self._channel.asks)
        others = sorted(stopped - self._stopped - {rank})
        self._stopped = stopped
        if not others:
            return
        have = "have" if len(others) > 1 else "has"
        stop = f"{rank_list(others)} {have} also stopped"
        print(f"{stop}: type `rank {others[0]}` to go there", flush=True)


def _rank_after_choice(channel: ControlChannel, rank: int, before: int) -> int:
    """The rank that a person has chosen, or the one before if it is not at a breakpoint.

    It may have stopped while the person was typing.
    """
    _wait_for_question(channel, rank)
    if rank in channel.asks:
        return rank
    print(f"rank {rank} is not at a breakpoint: {rank_list(sorted(channel.asks))} can be chosen")
    return before


def _wait_for_question(channel: ControlChannel, rank: int) -> None:
    """Wait for a while until a rank's debugger wants a line, as long as the rank computes."""
    deadline = time.monotonic() + WAIT
    while rank in channel.ends and rank not in channel.asks and time.monotonic() < deadline:
        channel.receive(LOOK)
        answer = channel.ask({rank}, seconds.ANSWER).get(rank)
        if answer is None or answer.status is None:
            continue
        if answer.status.doing != COMPUTING:
            return


def end_debuggers(channel: ControlChannel) -> None:
    """End every debugger: the person has left, or the cell is over."""
    for rank in list(channel.ends):
        channel.answer_debugger(rank, None)
