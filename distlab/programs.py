"""Programs of distlab's that run as processes of their own: how they start, and how they end.

The notebook's kernel asks for their command lines; the processes themselves call the rest. Needs no
other part of distlab.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def command(module: str, python: str = sys.executable) -> list[str]:
    """The command line that calls a module's main(), without the working folder on the path.

    Python's own modules are imported by their names: a learner's random.py or queue.py is not one
    of them. What is imported stays, so Python does not look for garbage in it meanwhile, which
    takes a tenth of the time.
    """
    bare = "import gc, sys; sys.path[:] = filter(None, sys.path)"
    imported = f"gc.disable(); from {module} import main; gc.enable()"
    return [python, "-c", f"{bare}; {imported}; main()"]


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the system send this process a signal when its parent ends.

    Only Linux can do that; elsewhere nothing happens. It sends the signal when the thread ends that
    has started this process.

    Args:
        parent: the parent's number, read before the fork or first of all. The parent may have ended
            before this call, and the system would never send a signal: it is sent here then.
        number: the signal's.

    Source: Linux, prctl(2) on PR_SET_PDEATHSIG.
    """
    _send_at_end_of_parent(number)
    if sys.platform == "linux" and os.getppid() != parent:
        os.kill(os.getpid(), number)


def outlive_parent() -> None:
    """Undo end_with_parent."""
    _send_at_end_of_parent(0)


def _send_at_end_of_parent(number: int) -> None:
    if sys.platform == "linux":
        import ctypes  # not for the notebook's kernel, which asks for command lines only

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
