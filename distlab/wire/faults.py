"""What a rank was doing when a fault in compiled code ended it.

Python's faulthandler writes that into a file. Four functions run in three processes:

- `enable_log` on every rank, called by group.py.
- `learners_part` where the file is, and where it is known which lines are the learner's: on the
  notebook's kernel, called by launcher.py.
- `pop_learners_part`, which also removes the file, in a fork server, called by logs.py.
- `parse_fault` on the kernel, called by launcher.py.
"""

import contextlib
import faulthandler
import os
import re
import threading
from dataclasses import dataclass

from distlab.wire.source import Line, is_learners, name_of_function

# in the environment of processes that distlab has started, which have a folder for the file
CLUSTER_VARIABLE = "DISTLAB_CLUSTER"
FOLDER_VARIABLE = "IPP_PROFILE_DIR"
MAIN_THREAD_ROW = "main "  # begins the row that names the main thread
ABORTED = "Fatal Python error: Aborted"  # how faulthandler begins for SIGABRT
_C10D = os.path.join("torch", "distributed", "distributed_c10d.py")
# not compiled here: every rank imports this, and few need it
_FRAME = r'  File "(.*)", line (\d+) in (.*)'
_THREAD = r"(Current thread|Thread) (0x[0-9a-f]+)"
_ESCAPED = r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})"


@dataclass(frozen=True)
class Fault:
    """Where a process was when a fault ended it.

    Attributes:
        lines: the learner's, outermost first: of the thread that was hit, or else of the main one.
        op: the function of torch.distributed that the last of them called; "" for none.
        in_python: whether a thread of Python's was hit, and not one that C++ has started, as gloo
            does.
        aborted: whether it was SIGABRT, whatever the process ended with: faulthandler looks at
            threads that still run, and may read memory that they have just freed.
    """

    lines: tuple[Line, ...] = ()
    op: str = ""
    in_python: bool = False
    aborted: bool = False


def log_path(folder: str, rank: int) -> str:
    """The file of a rank whose cluster has this folder."""
    return os.path.join(folder, "log", f"fault-{rank}.txt")


def enable_log(rank: int) -> None:
    """From now on, a fault writes the stacks of all threads into this rank's file.

    The file of an earlier process with the same rank is emptied. Engines that others have started
    get none, nor do those on a host without the cluster's folder.

    Runs on: a rank, its main thread.
    """
    if CLUSTER_VARIABLE not in os.environ or FOLDER_VARIABLE not in os.environ:
        return
    with contextlib.suppress(OSError):
        own = log_path(os.environ[FOLDER_VARIABLE], rank)
        file = open(own, "wb", buffering=0)  # noqa: SIM115  # faulthandler keeps it
        file.write(f"{MAIN_THREAD_ROW}{threading.get_ident():#018x}\n".encode())
        faulthandler.enable(file)


def learners_part(folder: str, rank: int) -> str:
    """The text of a rank's file without the frames of libraries; "" without a fault.

    Of the frames, those of the learner and of torch.distributed are kept.
    """
    try:
        with open(log_path(folder, rank), errors="replace") as file:
            rows = file.read().splitlines()
    except OSError:
        return ""
    kept = [row for row in rows if _is_worth_reporting(row)]
    if len(kept) < 2:  # the row that `enable_log` wrote
        return ""
    return "\n".join(kept)


def pop_learners_part(folder: str, rank: int) -> str:
    """As `learners_part`, of a process that has ended; the file is then removed.

    Otherwise it would count for the rank's next process, if that ends before it empties the file.
    """
    part = learners_part(folder, rank)
    with contextlib.suppress(OSError):
        os.unlink(log_path(folder, rank))
    return part


def _is_worth_reporting(row: str) -> bool:
    """Whether a row is no frame, or one that says what the learner's program did."""
    frame = re.fullmatch(_FRAME, row)
    if frame is None:
        return True
    file = _file_in(frame)
    return is_learners(file) or file.endswith(_C10D)


def parse_fault(part: str) -> Fault:
    """Where a process was, from what `learners_part` has returned for it.

    The file has a stack for each thread, with the innermost frame first.
    """
    main = ""  # the main thread
    current = ""  # the thread that was hit
    thread = ""  # the one whose stack is being read
    stacks: dict[str, list[Line]] = {}
    ops: dict[str, str] = {}
    for row in part.splitlines():
        if row.startswith(MAIN_THREAD_ROW):
            main = row.removeprefix(MAIN_THREAD_ROW)
            continue
        begins = re.match(_THREAD, row)
        if begins is not None:
            thread = begins[2]
            if begins[1] == "Current thread":
                current = thread
            continue
        frame = re.fullmatch(_FRAME, row)
        if frame is not None:
            is_c10d = _file_in(frame).endswith(_C10D)
            if not is_c10d:
                stacks.setdefault(thread, []).insert(0, _line(frame))
            elif thread not in stacks:
                # The innermost frames come first: the last one of c10d before the first of the
                # learner's is the function that the learner called.
                ops[thread] = frame[3]
    seen = current if current in stacks else main
    lines = stacks.get(seen, [])
    return Fault(
        lines=tuple(lines),
        op=ops.get(seen, ""),
        in_python=bool(current),
        aborted=ABORTED in part,
    )


def _line(frame: re.Match[str]) -> Line:
    """A line; one of a cell keeps its file, which tells one cell from another."""
    return Line(int(frame[2]), "", name_of_function(frame[3]), _file_in(frame))


def _file_in(frame: re.Match[str]) -> str:
    """The file of a frame; faulthandler escapes what is not ASCII."""

    def character(escaped: re.Match[str]) -> str:
        number = escaped[1] or escaped[2] or escaped[3]
        return chr(int(number, 16))

    return re.sub(_ESCAPED, character, frame[1])
