"""Exceptions of ranks, made readable: messages of torch and gloo without what means nothing.

Runs on the notebook's kernel, called by failed_cell.py, generation.py and runs.py, and by
endings.py beside it.
"""

import re
from dataclasses import replace

from distlab.diagnosis.lines import with_text
from distlab.wire.messages import Failure
from distlab.wire.source import is_learners

FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+, in ')  # in Python's tracebacks
# what Python lists below the text of an exception that has passed through C++
LED_TO_CALLBACK = re.compile(r"\n\nAt:(\n  [^\n]+\(\d+\): [^\n]+)+\n?")
# the place in C++ that raised, and the rank, which is named anyway
PLACE_IN_CPP = re.compile(r"(\[rank\d+\]:)?\[[^\[\]]*\.(cc|cpp|h):\d+\]\s*")
# parts of messages that `readable` replaces, in this order
MEANINGLESS = (
    (PLACE_IN_CPP, ""),
    (re.compile(r'"/__w/pytorch/[^"]*/([^"/]+)":(\d+)'), r"\1:\2"),
    # what the cluster's own keys begin with
    (re.compile(r"(?<![^\s'\"\[(])[^\s'\"\[(]*/group-\d+/(\d+/)*/*"), ""),
    # the address of an object
    (re.compile(r" at 0x[0-9a-f]+>"), ">"),
)
# an end of a connection, and then an arrow between two ends without addresses
ENDS_OF_CONNECTIONS = (
    re.compile(r",?\s{0,2}(remote=)?\[?127\.0\.0\.1\]?:\d+(\$\d+)?"),
    re.compile(r"\s{0,2}\(\s{0,2}<-->\s{0,2}(\[none\])?\s{0,2}\)"),
)


def made_readable(raised: Failure) -> Failure:
    """What a rank reports of its exception, readable, with source that only the notebook has."""
    handled = None
    if raised.handled is not None:
        handled = made_readable(raised.handled)
    lines = tuple(with_text(line) for line in raised.lines)
    is_torchs = raised.communicated or raised.kind.startswith("Dist")
    message = readable(raised.message, is_torchs)
    return replace(raised, message=message, lines=lines, handled=handled)


def readable(message: str, is_torchs: bool) -> str:
    """A message without the parts that mean nothing to its reader.

    These are gloo's source paths, byte-swapped ports, addresses, and what the cluster puts before a
    learner's keys of a store. Ends of a connection without an address go as well, because gloo
    sometimes writes them and sometimes does not. So does what torch writes around an error of a
    Future's callback: that it was one, and all lines that led to it.

    A learner's message may have a million characters in one line: no pattern may begin at each of
    them and look far.

    Args:
        message: the text of an exception.
        is_torchs: whether torch or gloo has written it. In a learner's own text, the address of a
            connection is what the learner wrote.
    """
    message = message.replace("Got the following error when running the callback: ", "")
    message = LED_TO_CALLBACK.sub("", message)
    is_torchs = is_torchs or PLACE_IN_CPP.search(message) is not None
    for pattern, replacement in MEANINGLESS:
        message = pattern.sub(replacement, message)
    if is_torchs:
        for pattern in ENDS_OF_CONNECTIONS:
            message = pattern.sub("", message)
    message, _, _ = message.partition("\nException raised from")
    message = message.strip()
    if "Traceback (most recent call last)" in message:
        return _without_libraries(message)
    return message


def _without_libraries(message: str) -> str:
    """A message that holds another process's traceback, with the learner's lines only.

    A DataLoader's worker is such a process. The lines of libraries tell a learner nothing.
    """
    kept: list[str] = []
    is_kept = True
    for line in message.split("\n"):
        frame = FRAME.match(line)
        if frame is not None:
            is_kept = is_learners(frame["file"])
        elif not line.startswith("    "):  # the end of a traceback, or no part of one
            is_kept = True
        if is_kept:
            kept.append(line)
    return "\n".join(kept)
