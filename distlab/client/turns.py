"""A person types to the debuggers of ranks that are at breakpoints, one rank at a time. Runs on the notebook's kernel.

rank/debugger.py is the other side.
"""

import re
import time

from distlab.client import waiting
from distlab.text import rank_list
from distlab.wire.channel import ControlChannel
from distlab.wire.messages import COMPUTING

WAIT = 5.0  # seconds for the next question of a rank that computes, before another one has its turn
LOOK = 0.1  # seconds between two looks at what it does


def take(channel: ControlChannel, rank: int) -> int:
    """Ask the person for one line, and send it to a rank: to the one of the last turn, if it wants another one.

    Args:
        rank: the one of the last turn.

    Returns:
        the one of this turn, or the one that the person has chosen for the next.

    Raises:
        KeyboardInterrupt: the person wants no more of it: `q`, or an interrupt.
    """
    rank = rank if rank in channel.asks else min(channel.asks)
    text, end, prompt = channel.asks[rank].rpartition("\n")
    print(text, end=end, flush=True)
    try:
        with waiting.allowed():
            line = input(prompt)
    except EOFError:
        line = "quit"
    is_command = prompt.startswith("(rank")
    if is_command and line.strip() in ("q", "quit", "exit"):
        raise KeyboardInterrupt
    if is_command and (other := re.fullmatch(r"\s*rank\s+(\d+)\s*", line)):
        channel.asks[rank] = prompt
        return _chosen(channel, int(other[1]), rank)
    channel.type(rank, line + "\n")
    _expect(channel, rank)
    return rank


def _chosen(channel: ControlChannel, rank: int, before: int) -> int:
    """The rank that a person has chosen, which may have come while the person was typing; or else the one before."""
    _expect(channel, rank)
    if rank in channel.asks:
        return rank
    print(f"rank {rank} is not at a breakpoint: {rank_list(sorted(channel.asks))} can be chosen")
    return before


def _expect(channel: ControlChannel, rank: int) -> None:
    """Wait for the next question of a rank, as long as it computes and nobody has to wait."""
    deadline = time.monotonic() + WAIT
    while rank in {*channel.ends} - {*channel.asks} and time.monotonic() < deadline:
        channel.hear(LOOK)
        answer = channel.ask({rank}).get(rank)
        if answer and answer.status and answer.status.doing != COMPUTING:
            return


def leave(channel: ControlChannel) -> None:
    """End every debugger: the person has left, or the cell is over."""
    for rank in list(channel.ends):
        channel.type(rank, None)
