"""How the process of a rank ended, as data: from its exit status, and from what it wrote.

No process is asked. Runs on the notebook's kernel, called by launcher.py, processes.py,
dead_ranks.py and generation.py; deaths.py has the error for a cell in which ranks died.
"""

import re
import signal
from dataclasses import dataclass, field, replace

from distlab.diagnosis.advice import NO_MORE_PROCESSES
from distlab.diagnosis.readable import readable
from distlab.wire.faults import Fault


@dataclass(frozen=True)
class Ending:
    """How the process of a rank ended.

    Attributes:
        what: the end of a sentence that begins with the rank, such as "died"; without its "was" if
            something ended the process, such as "killed by SIGKILL".
        is_passive: whether something ended the process, so that "was" or "were" comes first.
        by_mpiexec: whether mpiexec ended it because another rank had ended.
        may_be_mismatch: whether gloo may have ended it because its call did not match another
            rank's.
        status: the exit status that a shell shows for it.
    """

    what: str
    is_passive: bool = False
    by_mpiexec: bool = False
    may_be_mismatch: bool = False
    status: int = field(default=1, compare=False)

    def words(self, number: int = 1) -> str:
        """The end of a sentence about this many ranks that ended so: "were killed by SIGKILL"."""
        if not self.is_passive:
            return self.what
        verb = "was" if number == 1 else "were"
        return f"{verb} {self.what}"


UNKNOWN = Ending("died")
# of a rank whose watchdog is gone
CUT_OFF = Ending("cut off from the notebook", is_passive=True)
WITH_ANOTHER = Ending("ended by mpiexec when another rank ended", is_passive=True, by_mpiexec=True)

SIGNALLED = 128  # what a shell adds to the number of the signal that has ended a process
OFTEN_GLOO = "often gloo: a message was longer than its tensor"
# what gloo and C++ write about an exception that ends the process
GLOO_ENDS = r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)"
CPP_ENDS = r"terminate called after throwing an instance of '([^']*)'\s+what\(\):\s+([^\n]*)"
CAUSES = {
    "SIGKILL": "often by the system when memory runs out, or by kill -9",
    "SIGSEGV": "a fault in compiled code",
}


def ending_of(status: int, log: str = "", fault: Fault | None = None) -> Ending:
    """How a process ended, by its exit status and what it wrote.

    Args:
        status: its exit status, or minus the signal that ended it.
        log: the end of what the process wrote.
        fault: where it was if a fault ended it, as far as that is known.
    """
    if status >= 0:
        return Ending(f"ended with exit status {status}", status=status)
    if fault is not None and fault.aborted:
        status = -signal.SIGABRT
    ending = _ended_by(_name_of_signal(-status), log, fault)
    return replace(ending, status=SIGNALLED - status)


def _ended_by(name: str, log: str, fault: Fault | None) -> Ending:
    """How a process ended that a signal with this name has ended; see `ending_of`."""
    if name == "SIGABRT":
        # in a thread of Python's, which is none of gloo's
        in_python = fault is not None and fault.in_python
        return _aborted(log, in_python)
    return _killed_by(name, CAUSES.get(name, ""))


def _killed_by(name: str, cause: str, may_be_mismatch: bool = False) -> Ending:
    """The end by a signal, with its cause in brackets if that is known."""
    what = f"killed by {name}"
    if cause:
        what += f" ({cause})"
    return Ending(what, is_passive=True, may_be_mismatch=may_be_mismatch)


def _name_of_signal(number: int) -> str:
    """The name of a signal: "SIGKILL", or "signal 64" for one that Python does not name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _aborted(log: str, in_python: bool) -> Ending:
    """How a process ended that has called abort(), and why, as far as that is known.

    Args:
        log: the end of what it wrote.
        in_python: whether it was running Python code, which gloo's threads never do.
    """
    if NO_MORE_PROCESSES.search(log):
        return _killed_by("SIGABRT", "it was refused a thread")
    sizes = re.findall(GLOO_ENDS, log)
    if sizes:
        received, expected = sizes[-1]
        cause = f"gloo received {received} bytes where it expected {expected}"
        return _killed_by("SIGABRT", cause, may_be_mismatch=True)
    thrown = re.findall(CPP_ENDS, log)
    if thrown:
        kind, words = thrown[-1]
        return _killed_by("SIGABRT", f"C++ raised {kind}: {readable(words, is_torchs=True)}")
    if in_python:
        return _killed_by("SIGABRT", "")
    return _killed_by("SIGABRT", OFTEN_GLOO, may_be_mismatch=True)
