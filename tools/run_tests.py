"""Runs the project's tests part by part and ends with one line for each. Called by: make test.

Arguments are the names of the parts to run; none means all. The exit status is 1 when any part failed. Half of the time
a test waits, for a kernel or for a rank that hangs: three parts run side by side where there are two cores or more, and
each line begins with the name of its part. "cluster" means both of its parts.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest", "--color=no"]
PARTS = {
    "lint": ["make", "--no-print-directory", "lint"],
    "unit": [*PYTEST, "tests/unit"],
    "cluster/client": [*PYTEST, "--durations=10", "tests/cluster/client"],
    "cluster/others": [*PYTEST, "--durations=10", "tests/cluster", "--ignore=tests/cluster/client"],
    # Strict: every committed output is compared. A cell's own limit comes before pytest-timeout's, which shows less.
    # Disguised, because on the machine that saved it an output may know its machine, and nobody sees it.
    "nbval": [
        *(sys.executable, "tools/disguise.py", "-m", "pytest", "--color=no"),
        "--nbval",
        "--nbval-current-env",
        "--nbval-sanitize-with=tests/nbval.cfg",
        "--nbval-cell-timeout=100",
        "notebooks",
    ],
    "notebooks": [*PYTEST, "--durations=10", "tests/notebooks"],
    "browser": [*PYTEST, "tests/browser"],
    "network": [*PYTEST, "--durations=10", "tests/network"],
}
# each takes about as long as the others
LANES = (("lint", "unit", "cluster/client", "browser"), ("cluster/others", "notebooks", "network"), ("nbval",))


def run(name: str) -> tuple[bool, str]:
    """Run one part to its end: whether it went well, and its lines of the summary; what failed says there how."""
    began, last, failed = time.perf_counter(), "", []
    report, reports = deque(maxlen=12), {}  # the last lines that pytest prints of each failure
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = subprocess.Popen(PARTS[name], cwd=ROOT, **output)
    for line in process.stdout:
        print(f"{name:<14} | {line}", end="", flush=True)
        last = line.strip("= \n") or last
        if heading := re.fullmatch(r"_{3,} (.+) _{3,}\n|={3,} .+ ={3,}\n", line):
            report = reports.setdefault(heading[1], deque(maxlen=report.maxlen))
        elif line.startswith(("FAILED ", "ERROR ")):  # pytest's own summary
            failed.append(f"\n    {line.rstrip()}")
        elif line.strip():
            report.append(f"\n        {line.rstrip()}")
    reports.pop(None, None)
    failed += [f"\n    ----- {heading}{''.join(report)}" for heading, report in islice(reports.items(), 5)]
    status = process.wait()
    outcome = f"FAILED ({status})" if status else "ok"
    return status == 0, f"{name:<15} {outcome:<11} {time.perf_counter() - began:6.1f} s   {last}{''.join(failed)}"


def run_lane(names: list[str], stopped: threading.Event) -> list[tuple[bool, str]]:
    """Run one part after the other, until a person stops it."""
    return [run(name) for name in names if not stopped.is_set()]


def main(names: list[str]) -> int:
    known = dict.fromkeys(part.split("/")[0] for part in PARTS)
    unknown = [name for name in names if name not in known]
    if unknown:
        known = ", ".join(known)
        print(f'PARTS must be among {known}, got {unknown[0]!r}. Try: make test PARTS="unit"', file=sys.stderr)
        return 2
    lanes = [[part for part in lane if not names or part.split("/")[0] in names] for lane in LANES]
    if os.cpu_count() == 1:
        lanes = [[*chain(*lanes)]]
    stopped = threading.Event()
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(run_lane, lane, stopped) for lane in lanes]
        try:
            outcomes = [*chain(*(lane.result() for lane in running))]
        except KeyboardInterrupt:  # it reaches the parts that run by itself
            stopped.set()
            return 130
    print("\n----- summary", *(line for _, line in outcomes), sep="\n")
    return int(not all(well for well, _ in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
