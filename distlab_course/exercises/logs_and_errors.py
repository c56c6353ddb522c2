"""The exercises of lab 32: what each rank said, which one failed first, and how often to save."""

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.distributed.elastic.multiprocessing.errors import error_handler

from distlab.checking import exercise, formula, gathered, question

TWO_LINES = """import os, sys
for stream in ("stdout", "stderr"):
    print(f"{stream} of {os.environ['RANK']}\\n", end="", file=getattr(sys, stream), flush=True)
"""


@question("32")
def log_command(answer):
    """Start train.py on 2 ranks so that `logs` holds stdout and stderr of both, and the terminal
    shows only rank 0's.

    Give the command line. It is run for real, on a script that writes a line to stdout and one to
    stderr.

    Title: 1.1 Quiet, but complete
    Hint: `--redirects 3` sends both streams of all ranks into files only, and `--tee 3` into files
    and to the terminal.
    Hint: `--tee 0:3` applies to rank 0 alone; `--local-ranks-filter 0` shows nothing but rank 0.

    Why: Files keep what every rank said, and the terminal stays readable with a thousand ranks.
    """
    # it imports torch._dynamo, which replaces functions of torch: not on ranks that are watched
    from distlab_course.exercises.launching import run_torchrun

    try:
        shown, files = run_torchrun(answer, TWO_LINES)
    except ValueError as error:
        return f"{error}."
    for rank in (0, 1):
        for stream in ("stdout", "stderr"):
            line = f"{stream} of {rank}"
            if not _is_in_logs(line, stream, files):
                return (
                    f"No log file below logs/ has the line `{line}`; "
                    f"there are {len(files)} log files."
                )
            if rank == 0 and line not in shown:
                return f"The terminal does not show the line `{line}`."
            if rank == 1 and line in shown:
                return f"The terminal shows the line `{line}`."
    return True


def _is_in_logs(line, stream, files):
    """Whether a file of this stream below logs/ has the line."""
    for path, text in files.items():
        if path.parts[0] == "logs" and stream in path.name and line in text:
            return True
    return False


# --- error files ---

SECONDS_WITH_FILES = 30.0  # for a call, on a busy machine
MONDAY = 1_795_296_000  # a second, as clocks count them
# for each rank in turn: seconds after that at which it failed; None for a rank without a file
FAILURES = (
    (20, 23, 26, 29),
    (23, 20, 20, None),
    (23, 22, 26, 40),
    (None, None, 50, 52),
    (31, 30, 32, 31),
)


def _clock_at_failure(rank, n, case):
    """What this rank's clock said when it failed; None if it left no file."""
    if case[rank] is None:
        return (None,)
    return (MONDAY + case[rank],)


def _write_error_file(file, clock):
    """Let torch write the error file of a rank that fails when its clock says this."""
    stopped_clock = SimpleNamespace(time=lambda: clock + 0.5)
    with (
        mock.patch.dict(os.environ, {"TORCHELASTIC_ERROR_FILE": str(file)}),
        mock.patch.object(error_handler, "time", stopped_clock),
    ):
        try:
            raise ValueError("the data have no labels")
        except ValueError as error:
            error_handler.ErrorHandler().record_exception(error)


def _try_culprit(fn, clock):
    """What the answer returns for the file that torch has written on this rank."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "error.json")
        if clock is not None:
            _write_error_file(file, clock)
        return fn(file)


@exercise(
    "32",
    worlds=(1, 2, 4),
    cases=FAILURES,
    given=_clock_at_failure,
    trial=_try_culprit,
    seconds=SECONDS_WITH_FILES,
)
def culprit(error_file):
    """Return, on every rank, the sorted list of the ranks that may have failed first.

    `error_file` is the path of the file that `record` has written on this rank, which is not there
    if the rank did not fail by itself. No rank was killed. The times in the files are strings with
    whole seconds, and the clocks of the hosts agree to within one second, so only a difference of
    two seconds or more proves which rank failed first.

    Title: 2.1 Find the culprit
    Hint: `error_file.exists()` says whether this rank has a file. In the file, the time is under
    "message", "extraInfo", "timestamp".
    Hint: `dist.all_gather_object(times, time)` fills the list `times`, which has a place for each
    rank. A rank without a file takes part with None.
    Hint: Which ranks' times are at most one second above the smallest?
    Stuck: Does a rank without a file take part in the exchange?
    """
    time = None
    if error_file.exists():
        error = json.loads(error_file.read_text())
        time = int(error["message"]["extraInfo"]["timestamp"])
    times = gathered(time)
    known = [time for time in times if time is not None]
    return [rank for rank, time in enumerate(times) if time is not None and time - min(known) < 2]


# --- checkpoints ---


@formula("32", (10, 86_400), (1, 100), (30, 3600))
def best_interval(c, m):
    """Return the number of seconds between two checkpoints with which the least time is lost.

    Saving takes `c` seconds, and a rank dies every `m` seconds on average. Saving every t seconds
    costs the share c / t, and a failure loses t / 2 seconds on average, which is the share t / (2
    m).

    Title: 3.1 How often should you save?
    Hint: Where is the derivative of c / t + t / (2 m) zero?
    Hint: -c / t**2 + 1 / (2 m) = 0.
    """
    return (2 * c * m) ** 0.5


# for each rank in turn: the steps of which it has a file, and those of them whose end is missing
SAVED: tuple[Any, ...] = (
    (([10, 20, 30], []), ([10, 20, 30], []), ([10, 20, 30], []), ([10, 20, 30], [])),
    (([10, 20, 30], []), ([10, 20], []), ([10, 20], []), ([10, 20, 30], [])),
    (([10, 20, 30], [30]), ([10, 20, 30], []), ([10, 20, 30], []), ([10, 20, 30], [20])),
    (([20, 30], []), ([10, 30], []), ([10, 20], []), ([10, 20, 30], [])),
    (([], []), ([10], []), ([10], []), ([10], [])),
    (([10, 20], [10]), ([10, 20], [20]), ([10, 20], []), ([10, 20], [])),
)
# what is left of a file whose end is missing: torch raises another exception for each
BYTES_LEFT = {10: 0, 20: 2, 30: 500}


def _saved_by_rank(rank, n, case):
    """The steps that this rank has saved, and those whose file ends too early."""
    return case[rank]


def _try_newest(fn, steps, cut):
    """What the answer returns for a folder with these files of this rank."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step in steps:
            path = folder / f"step{step}.pt"
            torch.save({"step": step, "weights": torch.zeros(100)}, path)
            if step in cut:
                beginning = path.read_bytes()[: BYTES_LEFT[step]]
                path.write_bytes(beginning)
        return fn(folder)


@exercise(
    "32",
    worlds=(1, 2, 4),
    cases=SAVED,
    given=_saved_by_rank,
    trial=_try_newest,
    seconds=SECONDS_WITH_FILES,
)
def newest_checkpoint(folder):
    """Return, on every rank, the newest step that every rank can load, and 0 if there is none.

    `folder` holds the checkpoints of this rank, `step10.pt`, `step20.pt` and so on, each with the
    number of its step under "step". A rank that was killed while it was saving has left a file
    whose end is missing.

    Title: 3.2 Where can all ranks continue?
    Hint: `folder.glob("step*.pt")` finds the files, and `torch.load` raises an exception if the end
    of a file is missing. Which one depends on how much is missing, and a file may be empty.
    Hint: Gather the set of each rank's steps. `set.intersection(*sets)` is what all of them have.
    Hint: `max(steps, default=0)` is 0 if there are no steps.
    Stuck: Does a rank without a checkpoint take part in the exchange?
    """
    mine = set()
    for path in folder.glob("step*.pt"):
        try:
            mine.add(torch.load(path)["step"])
        except Exception:
            continue
    common = set.intersection(*gathered(mine))
    return max(common, default=0)
