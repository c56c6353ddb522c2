"""How processes of ranks ended, where they were, and the error for a cell in which some did.

Pure functions. Runs on the notebook's kernel, called by cell.py, ranks.py and processes.py.
"""

import re
import signal
from collections.abc import Mapping, Sequence

from distlab.diagnosis.advice import NO_MORE_PROCESSES
from distlab.diagnosis.failures import readable, where, with_text
from distlab.errors import RankDied
from distlab.wire.faults import Fault
from distlab.wire.messages import Failure
from distlab.wire.source import Line
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
    cells = [line.file for line in lines if f"ipykernel_{pid}" in line.file]
    shown = []
    for line in lines:
        if line.file not in cells:
            shown.append(with_text(line))
        elif line.file == cells[0] and line.number <= len(texts):
            shown.append(
                Line(line.number, texts[line.number - 1].removeprefix("%px ").strip(), line.place)
            )
        else:  # of a function from an earlier cell
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
        last_lines: the end of what they wrote, kept as the failures' traceback.
        gone: what was lost with them, in sentences.
        lines: where they were, by rank, as far as that is known.
        then: what is known of the others at that time, and what to do to learn more.
    """
    who, several = rank_list(others).capitalize() if others else "", len(others) > 1
    if host_lost:
        keep = "keep their" if several else "keeps its"
        kept = f"{who} {keep} variables; until then, ranks={list(others)} can use them without a group."
        advice = "cluster.heal() and the next cell for all ranks try the host again."
    elif not again:
        kept = f"{who} {'keep theirs' if several else 'keeps its own'}."
        places = (
            "new ones in their places, without their"
            if len(died) > 1
            else "a new one in its place, without its"
        )
        advice = f"The next cell starts {places} variables, and rebuilds the process group."
    else:
        kept, why = "", "The cluster is incomplete"
        if ended := [rank for rank, how in died.items() if how == WITH_ANOTHER]:
            why = "MPI ends a whole program when one of its processes dies: mpiexec has ended"
            why += f" {rank_list(ended)} too.\nAll variables are lost"
        advice = f"{why}: {again}."
    words = " ".join(filter(None, [advice, kept if others else "", gone]))
    causes_first = sorted(died.items(), key=lambda item: (item[1] == WITH_ANOTHER, item[0]))
    raised = [
        Failure(rank, DIED, how, lines.get(rank, ()), traceback=last_lines.get(rank, ""))
        for rank, how in causes_first
    ]
    alike = grouped((failed.lines, failed.rank) for failed in raised if failed.lines)
    places = [where(ranks, at) for at, ranks in alike.items()]
    return RankDied(
        "\n".join([f"{died_words(died)}.", *places, *then, words]), tuple(raised), tuple(others)
    )


def died_words(died: Mapping[int, str]) -> str:
    """Which ranks died and how, in words, without those that died with another; those that died
    alike together.
    """
    alike = grouped((how, rank) for rank, how in sorted(died.items()) if how != WITH_ANOTHER)
    rows = [(rank_list(ranks), how) for how, ranks in alike.items()]
    return "; ".join(
        f"{who} {re.sub('^was ', 'were ', how) if 'ranks' in who else how}" for who, how in rows
    )


def exit_words(status: int | None, log: str = "", fault: Fault | None = None) -> str:
    """How a process ended, in words: "was killed by SIGKILL (often ...)", "ended with exit status
    3".

    Args:
        status: None if it is not known.
        log: the end of what the process wrote.
        fault: where it was if a fault ended it, as far as that is known.
    """
    if status is None:
        return "died"
    if status >= 0:
        return f"ended with exit status {status}"
    if fault is not None and fault.aborted:
        status = -signal.SIGABRT
    # in a thread of Python's, which is none of gloo's
    in_python = fault is not None and fault.in_python
    name = {known.value: known.name for known in signal.Signals}.get(-status, f"signal {-status}")
    cause = _why_aborted(log, in_python) if name == "SIGABRT" else CAUSES.get(name, "")
    return f"was killed by {name} ({cause})" if cause else f"was killed by {name}"


def _why_aborted(log: str, in_python: bool) -> str:
    """Why a process has called abort(), from the end of what it wrote; "" if nothing is known."""
    if NO_MORE_PROCESSES.search(log):
        return "it was refused a thread"
    if sizes := re.findall(GLOO_ENDS, log):
        came, expected = sizes[-1]
        return f"gloo received {came} bytes where it expected {expected}"
    if thrown := re.findall(CPP_ENDS, log):
        kind, words = thrown[-1]
        return f"C++ raised {kind}: {readable(words)}"
    return "" if in_python else OFTEN_GLOO


def is_mismatch(how: str) -> bool:
    """Whether a process that ended so, in words, may have made a call that does not match those of
    other ranks.
    """
    return "(gloo received" in how or OFTEN_GLOO in how
