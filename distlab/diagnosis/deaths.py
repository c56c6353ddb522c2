"""How processes of ranks ended, where they were, and the error for a cell in which some did.

Pure functions. Runs on the notebook's kernel, called by failed_cell.py, dead_ranks.py and
launcher.py.
"""

import re
import signal
from collections.abc import Mapping, Sequence

from distlab.diagnosis.advice import NO_MORE_PROCESSES
from distlab.diagnosis.failures import readable, where, with_text
from distlab.errors import RankDied
from distlab.wire.faults import Fault
from distlab.wire.messages import Failure
from distlab.wire.source import Line, process_of_cell
from distlab.words import grouped, rank_list

DIED = "RankDied"  # the kind of a failure that is the end of a process
CUT_OFF = "was cut off from the notebook"  # a rank whose watchdog is gone
WITH_ANOTHER = "was ended by mpiexec when another rank ended"  # how a rank died that MPI ended
OFTEN_GLOO = "often gloo: a message was longer than its tensor"
# what gloo and C++ write about an exception that ends the process
GLOO_ENDS = r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)"
CPP_ENDS = r"terminate called after throwing an instance of '([^']*)'\s+what\(\):\s+([^\n]*)"
CAUSES = {
    "SIGKILL": "often by the system when memory runs out, or by kill -9",
    "SIGSEGV": "a fault in compiled code",
}


def lines_of_dead(lines: Sequence[Line], pid: int, source: str) -> tuple[Line, ...]:
    """Where a process was when it ended, with the text of the lines, as the notebook shows them.

    Args:
        lines: as wire/faults.py reads them: those of cells have a file that only the process had.
        pid: its number.
        source: the text of the %%px cell that it ran, its first line included; "" for a function.
    """
    texts = source.splitlines()
    cells = [line.file for line in lines if process_of_cell(line.file) == pid]
    shown = []
    for line in lines:
        if line.file not in cells:
            shown.append(with_text(line))
        elif line.file == cells[0] and line.number <= len(texts):
            text = texts[line.number - 1].removeprefix("%px ").strip()
            shown.append(Line(line.number, text, line.place))
        else:  # in a function from an earlier cell
            shown.append(Line(line.number, "", line.place))
    return tuple(shown)


def rank_died(
    died: Mapping[int, str],
    others: Sequence[int],
    again: str,
    host_lost: bool,
    last_lines: Mapping[int, str],
    gone: str,
    lines: Mapping[int, tuple[Line, ...]],
    then: Sequence[str] = (),
) -> RankDied:
    """The error for ranks whose processes ended in a cell.

    Args:
        died: how, in words, by rank.
        others: the ranks that are alive.
        again: what to do for new ranks; "" if they come by themselves.
        host_lost: whether a host of theirs cannot be reached any more.
        last_lines: the end of what they wrote, by rank, kept as the failures' traceback.
        gone: what was lost with them, in sentences.
        lines: where they were, by rank, as far as that is known.
        then: what is known of the others at that time, and what to do to learn more.
    """
    if host_lost:
        advice = "cluster.heal() and the next cell for all ranks try the host again."
        kept = _kept_until_host_is_back(others)
    elif again:
        advice = f"{_why_incomplete(died)}: {again}."
        kept = ""
    else:
        advice = f"The next cell starts {_new_ranks(len(died))}, and rebuilds the process group."
        kept = _kept(others)
    failures = []
    for rank in sorted(died, key=lambda rank: (died[rank] == WITH_ANOTHER, rank)):  # causes first
        output = last_lines.get(rank, "")
        failures.append(Failure(rank, DIED, died[rank], lines.get(rank, ()), traceback=output))
    alike = grouped((failed.lines, failed.rank) for failed in failures if failed.lines)
    places = [where(ranks, at) for at, ranks in alike.items()]
    words = " ".join(filter(None, [advice, kept, gone]))
    message = "\n".join([f"{died_words(died)}.", *places, *then, words])
    return RankDied(message, tuple(failures), tuple(others))


def _kept_until_host_is_back(others: Sequence[int]) -> str:
    """What the ranks keep whose host can be reached; "" if there are none."""
    if not others:
        return ""
    keep = "keep their" if len(others) > 1 else "keeps its"
    kept = f"{rank_list(others).capitalize()} {keep} variables"
    return f"{kept}; until then, ranks={list(others)} can use them without a group."


def _kept(others: Sequence[int]) -> str:
    """What the ranks keep that are alive; "" if there are none."""
    if not others:
        return ""
    keep = "keep theirs" if len(others) > 1 else "keeps its own"
    return f"{rank_list(others).capitalize()} {keep}."


def _new_ranks(number: int) -> str:
    """What starts in the place of this many ranks."""
    if number > 1:
        return "new ones in their places, without their variables"
    return "a new one in its place, without its variables"


def _why_incomplete(died: Mapping[int, str]) -> str:
    """Why a cluster cannot go on without the ranks that died, in words."""
    ended = [rank for rank, how in died.items() if how == WITH_ANOTHER]
    if not ended:
        return "The cluster is incomplete"
    rule = "MPI ends a whole program when one of its processes dies"
    return f"{rule}: mpiexec has ended {rank_list(ended)} too.\nAll variables are lost"


def died_words(died: Mapping[int, str]) -> str:
    """Which ranks died and how, in words; those that died alike together.

    Ranks that died with another one are left out.

    Args:
        died: how, in words, by rank.
    """
    alike = grouped((died[rank], rank) for rank in sorted(died) if died[rank] != WITH_ANOTHER)
    parts = []
    for how, ranks in alike.items():
        if len(ranks) > 1:
            how = re.sub("^was ", "were ", how)
        parts.append(f"{rank_list(ranks)} {how}")
    return "; ".join(parts)


def exit_words(status: int | None, log: str = "", fault: Fault | None = None) -> str:
    """How a process ended: "ended with exit status 3", "was killed by SIGKILL (often by ...)".

    Args:
        status: its exit status, or minus the signal that ended it; None if it is not known.
        log: the end of what the process wrote.
        fault: where it was if a fault ended it, as far as that is known.
    """
    if status is None:
        return "died"
    if status >= 0:
        return f"ended with exit status {status}"
    if fault is not None and fault.aborted:
        status = -signal.SIGABRT
    name = _name_of_signal(-status)
    if name == "SIGABRT":
        # in a thread of Python's, which is none of gloo's
        in_python = fault is not None and fault.in_python
        cause = _why_aborted(log, in_python)
    else:
        cause = CAUSES.get(name, "")
    return f"was killed by {name} ({cause})" if cause else f"was killed by {name}"


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _why_aborted(log: str, in_python: bool) -> str:
    """Why a process has called abort(), from the end of what it wrote; "" if nothing is known.

    Args:
        log: the end of what it wrote.
        in_python: whether it was running Python code, which gloo's threads never do.
    """
    if NO_MORE_PROCESSES.search(log):
        return "it was refused a thread"
    sizes = re.findall(GLOO_ENDS, log)
    if sizes:
        came, expected = sizes[-1]
        return f"gloo received {came} bytes where it expected {expected}"
    thrown = re.findall(CPP_ENDS, log)
    if thrown:
        kind, words = thrown[-1]
        return f"C++ raised {kind}: {readable(words, is_torchs=True)}"
    return "" if in_python else OFTEN_GLOO


def is_mismatch(how: str) -> bool:
    """Whether a rank's call may not have matched those of others, by how its process ended.

    Args:
        how: the words of `exit_words`.
    """
    return "(gloo received" in how or OFTEN_GLOO in how
