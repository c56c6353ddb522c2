"""Runs the project's tests part by part and ends with one line for each. Called by: make test.

Arguments are the names of the parts to run; none means all. The exit status is 1 when any part failed.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest"]
PARTS = {
    "lint": [sys.executable, "-m", "ruff", "check", "."],
    "unit": [*PYTEST, "tests/unit"],
    "cluster": [*PYTEST, "tests/cluster"],
    "notebooks": [*PYTEST, "tests/notebooks"],
    "browser": [*PYTEST, "tests/browser"],
    # Strict: every committed output is compared. A cell's own limit comes before pytest-timeout's, which shows less.
    "nbval": [
        *PYTEST,
        "--nbval",
        "--nbval-current-env",
        "--nbval-sanitize-with=tests/nbval.cfg",
        "--nbval-cell-timeout=100",
        "notebooks",
    ],
}


def run_part(command: list[str]) -> tuple[int, str]:
    """Runs one part with its output shown as it comes; returns its exit status and its last line."""
    colour = ["--color=yes"] if sys.stdout.isatty() and "pytest" in command else []
    process = subprocess.Popen(
        command + colour, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    last = ""
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    finally:
        status = process.wait()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", last)
    return status, plain.strip("= ")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(
            f'PARTS must be among {", ".join(PARTS)}, got {unknown[0]!r}. Try: make test PARTS="unit"', file=sys.stderr
        )
        return 2
    summary = []
    for name in names or PARTS:
        print(f"\n----- {name}", flush=True)
        started = time.perf_counter()
        status, last = run_part(PARTS[name])
        summary.append((name, status, last, time.perf_counter() - started))
    print("\n----- summary")
    for name, status, last, seconds in summary:
        print(f"{name:<10} {'ok' if status == 0 else f'FAILED ({status})':<11} {seconds:6.1f} s   {last}")
    return int(any(status for _, status, _, _ in summary))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
