"""How a program has ended, for a person and for the shell: words, and an exit status.

No process is asked. Runs in the launcher's process, called by running.py.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Any

from distlab.diagnosis import afterwards, deaths
from distlab.diagnosis.advice import advice_for
from distlab.diagnosis.lines import position_words
from distlab.errors import MismatchError, RankError, RanksFailed
from distlab.scripts.ending import Ending
from distlab.scripts.statuses import FAILED, signalled
from distlab.wire.messages import Failure
from distlab.words import grouped, rank_list

MOST_LETTERS = 200  # of a line that is said again
NCCL = re.compile("NCCL")
NO_GPU = (
    "The script asks for NCCL, which needs a GPU for each rank. `distlab run --backend gloo` runs "
    "it on CPUs."
)
# of reports that are made for a notebook, what makes sense there only
IN_NOTEBOOKS = (
    afterwards.NEXT_STEP,
    re.compile(r"\nFreed after [^\n]*"),
    re.compile(r"\nThe next cell [^\n]*"),
)


def without_next_steps(words: str) -> str:
    """A report without what makes sense in a notebook only."""
    for pattern in IN_NOTEBOOKS:
        words = pattern.sub("", words)
    return words


def words_of(error: RanksFailed) -> str:
    """What is said of a program that failed: which rank did what, and who waited for it."""
    culprits = [one for one in error.failures if not one.consequence]
    is_report = any(one.kind == MismatchError.__name__ for one in culprits)
    # where none is at fault, the words of a notebook say what else is known, such as a rank that
    # has destroyed the group
    if type(error) is RankError and culprits and not is_report:
        return _words_of_raised(error)
    words = without_next_steps(str(error))
    words = words.replace("with check=True (%%px --check)", "with --check")
    if is_report:
        return words
    return f"{type(error).__name__}: {words}{_last_lines(error)}"


def words_of_interrupt(interrupt: KeyboardInterrupt) -> str:
    """What is said after Ctrl-C: where every rank was."""
    words = without_next_steps(str(interrupt))
    return f"Interrupted: {words}" if words else "Interrupted while the ranks started."


def _words_of_raised(error: RankError) -> str:
    """The error for ranks that have raised: their tracebacks are on stderr already."""
    culprits = [one for one in error.failures if not one.consequence]
    waited = [one for one in error.failures if one.consequence]
    sentences = []
    ended = grouped((_how(one), one.rank) for one in culprits or error.failures)
    for how, ranks in ended.items():
        sentences.append(f"{rank_list(ranks).capitalize()} {how}.")
    if culprits and waited:
        places = grouped((f"{_call(one)}{_where(one)}", one.rank) for one in waited)
        for place, ranks in places.items():
            sentences.append(f"{rank_list(ranks).capitalize()} waited in {place}.")
    for one in culprits:
        advice = NO_GPU if NCCL.search(one.message) else advice_for(one)
        if advice and advice not in sentences:
            sentences.append(advice)
    return "\n".join(sentences)


def _how(failure: Failure) -> str:
    """How a rank failed, as the end of a sentence that begins with the rank."""
    if failure.kind == "SystemExit":
        return f"ended with exit status {failure.status}{_where(failure)}"
    first_line = failure.message.strip().partition("\n")[0]
    what = f"{failure.kind}: {first_line}" if first_line else failure.kind
    return f"raised {what.rstrip('.')}{_where(failure)}"


def _call(failure: Failure) -> str:
    """The call in which a rank waited, as far as that is known."""
    return failure.call.op if failure.call is not None and failure.call.op else "communication"


def _where(failure: Failure) -> str:
    """ " at train.py:12 in step", if that is known."""
    if not failure.lines:
        return ""
    return f" at {position_words(failure.lines[-1])}"


def _last_lines(error: RanksFailed) -> str:
    """What ranks that died wrote last on stderr, in lines; it may stand far above."""
    words = ""
    for failure in error.failures:
        if failure.kind == deaths.DIED and failure.traceback.strip():
            *_, last = failure.traceback.strip().splitlines()
            who = f"The last line that rank {failure.rank} wrote on stderr"
            words += f"\n{who}: {last[:MOST_LETTERS]}"
    return words


def in_order(failures: Sequence[Failure], first: Sequence[int]) -> tuple[Failure, ...]:
    """Failures with those before the others that came first, and of these the causes."""
    return tuple(sorted(failures, key=lambda one: (one.consequence, one.rank not in first)))


def status_of(error: RanksFailed) -> int:
    """The exit status of the first rank that failed."""
    for failure in error.failures:
        if failure.kind in ("SystemExit", deaths.DIED):
            return failure.status or FAILED
        break
    return FAILED


def of_signal(number: int, replies: Sequence[Any], ending: Ending) -> tuple[int, str]:
    """Status and words for a program that was ended by a signal to the launcher.

    Args:
        number: of the signal.
        replies: of the ranks.
        ending: which of them were asked, and which were killed.
    """
    status = 0
    died = []
    for rank, reply in enumerate(replies):
        if isinstance(reply, Exception):
            died.append(rank)
        elif reply[0].failure is not None:
            status = status or reply[0].failure.status
    words = f"Ended by {name_of(number)}"
    if died:
        status = signalled(number)
    elif ending.asked:
        words += f", after which {rank_list(sorted(ending.asked))} ended by themselves"
    if ending.killed:
        words += f"; {rank_list(sorted(ending.killed))} had to be killed"
    return status, f"{words}."


def name_of(number: int) -> str:
    """The name of a signal."""
    return signal.Signals(number).name
