"""The exercises of lab 32: what each rank said, which one failed first, and how often to save."""

from distlab.checking import formula, question
from distlab_course.exercises.launching import run_torchrun

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


def _error_files(stamps):
    """What torchrun's ranks leave in their error files, from the time of each rank's error."""
    files = {}
    for rank, stamp in stamps.items():
        files[rank] = {"message": {"message": "RuntimeError", "extraInfo": {"timestamp": stamp}}}
    return files


@formula(
    "32",
    (_error_files({0: "1795296044", 3: "1795296043"}),),
    (_error_files({0: "1795296044", 3: "1795296043", 7: "999999999"}),),
    (_error_files({5: "17"}),),
)
def culprit(files):
    """Return the rank that failed first; `files` maps each rank to the parsed contents of its
    `error.json`.

    Title: 2.1 Find the culprit
    Hint: The time is under "message", "extraInfo", "timestamp": seconds, as a string.
    Hint: Strings are compared character by character: "999" is larger than "1000". `min(files,
    key=...)` finds the first.
    """

    def time_of(rank):
        return float(files[rank]["message"]["extraInfo"]["timestamp"])

    return min(files, key=time_of)


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
