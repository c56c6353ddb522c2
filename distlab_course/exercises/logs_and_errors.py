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
    logs = {path: text for path, text in files.items() if path.parts[0] == "logs"}
    for number, stream in ((0, "stdout"), (0, "stderr"), (1, "stdout"), (1, "stderr")):
        line = f"{stream} of {number}"
        if not any(line in text for path, text in logs.items() if stream in path.name):
            return (
                f"No log file below logs/ has the line `{line}`; there are {len(files)} log files."
            )
        if (line in shown) != (number == 0):
            return f"The terminal {'does not show' if number == 0 else 'shows'} the line `{line}`."
    return True


STAMPS = [
    {0: "1795296044", 3: "1795296043"},
    {0: "1795296044", 3: "1795296043", 7: "999999999"},
    {5: "17"},
]


def _error_file(stamp):
    """What is in an error file, as torchrun's ranks leave it."""
    return {"message": {"message": "RuntimeError", "extraInfo": {"timestamp": stamp}}}


@formula(
    "32", *(({rank: _error_file(stamp) for rank, stamp in stamps.items()},) for stamps in STAMPS)
)
def culprit(files):
    """Return the rank that failed first; `files` maps each rank to the parsed contents of its
    `error.json`.

    Title: 2.1 Find the culprit
    Hint: The time is under "message", "extraInfo", "timestamp": seconds, as a string.
    Hint: Strings are compared character by character: "999" comes after "1000". `min(files,
    key=...)` finds the first.
    """
    return min(files, key=lambda rank: float(files[rank]["message"]["extraInfo"]["timestamp"]))


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
