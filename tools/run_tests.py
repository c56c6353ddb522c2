"""Runs the project's tests part by part and ends with one line for each. Called by: make test.

Arguments are the names of the parts to run; none means all. The exit status is 1 when any part failed. Half of the time
a test waits, for a kernel or for a rank that hangs: two parts run side by side where there are two cores or more.
"""

import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest"]
PARTS = {
    "lint": [sys.executable, "-m", "ruff", "check", "."],
    "unit": [*PYTEST, "tests/unit"],
    "cluster": [*PYTEST, "tests/cluster"],
    # Strict: every committed output is compared. A cell's own limit comes before pytest-timeout's, which shows less.
    # Disguised, because on the machine that saved it an output may know its machine, and nobody sees it.
    "nbval": [
        *(sys.executable, "tools/disguise.py", "-m", "pytest"),
        "--nbval",
        "--nbval-current-env",
        "--nbval-sanitize-with=tests/nbval.cfg",
        "--nbval-cell-timeout=100",
        "notebooks",
    ],
    "notebooks": [*PYTEST, "tests/notebooks"],
    "browser": [*PYTEST, "tests/browser"],
}
LANES = (("lint", "unit", "cluster"), ("nbval", "notebooks", "browser"))  # each takes about as long as the other


class Part:
    """One part of the tests, and what it writes.

    Attributes:
        lines: its output as it comes, None at its end. status, last, seconds: as it ended.
    """

    def __init__(self, name: str):
        self.name, self.lines = name, queue.SimpleQueue()
        self.status, self.last, self.seconds = 1, "did not run", 0.0

    def run(self) -> None:
        """Run it to its end."""
        command, started = PARTS[self.name], time.perf_counter()
        colour = ["--color=yes"] if sys.stdout.isatty() and "pytest" in command else []
        process = subprocess.Popen(
            command + colour, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        for line in process.stdout:
            self.lines.put(line)
            self.last = line.strip() or self.last
        self.last = re.sub(r"\x1b\[[0-9;]*m", "", self.last).strip("= ")
        self.status, self.seconds = process.wait(), time.perf_counter() - started


def run_lane(parts: list[Part], ended: threading.Event) -> None:
    """Run one part after the other, until a person ends it: Ctrl-C reaches the part that runs by itself."""
    try:
        for part in parts:
            if not ended.is_set():
                part.run()
            part.lines.put(None)
    finally:
        for part in parts:  # also when one could not be started
            part.lines.put(None)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(
            f'PARTS must be among {", ".join(PARTS)}, got {unknown[0]!r}. Try: make test PARTS="unit"', file=sys.stderr
        )
        return 2
    lanes = [[Part(name) for name in lane if not names or name in names] for lane in LANES]
    parts = [part for lane in lanes for part in lane]
    ended = threading.Event()
    threads = [
        threading.Thread(target=run_lane, args=(lane, ended))
        for lane in (lanes if (os.cpu_count() or 1) > 1 else [parts])
    ]
    for thread in threads:
        thread.start()
    try:
        for part in parts:  # what the other lane writes meanwhile waits in its queue
            print(f"\n----- {part.name}", flush=True)
            for line in iter(part.lines.get, None):
                print(line, end="", flush=True)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    print("\n----- summary")
    for part in parts:
        outcome = "ok" if part.status == 0 else f"FAILED ({part.status})"
        print(f"{part.name:<10} {outcome:<11} {part.seconds:6.1f} s   {part.last}")
    return int(any(part.status for part in parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
