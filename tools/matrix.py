"""Runs the tests with several Pythons and versions of torch, each pair in its own environment. Called by: make matrix.

Arguments are pairs such as 3.13:2.15.0, where "oldest" is the first torch that pyproject.toml takes, "pinned" that of
constraints.txt, and "newest" that of distlab/compat/versions.py. An environment stays in .matrix/ and is used again
while it is current; beside it is the log of what the pair printed. A pair whose Python or disk is missing is skipped,
and says so. The exit status is 1 when any pair failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / ".matrix"
NEEDED_GB = 8  # PyPI's torch for Linux takes 5.6 GB with its libraries, and pip unpacks beside it
NAMED = {
    "oldest": ("pyproject.toml", r'"torch>=([\d.]+)'),
    "pinned": ("constraints.txt", r"(?m)^torch==([\d.]+)"),
    "newest": ("distlab/compat/versions.py", r'NEWEST_TORCH = "([\d.]+)"'),
}


@dataclass(frozen=True)
class Pair:
    """A version of Python, such as 3.13, and a whole version of torch, such as 2.13.0."""

    python: str
    torch: str

    def __str__(self) -> str:
        return f"{self.python}:{self.torch}"

    @property
    def venv(self) -> Path:
        return MATRIX / f"{self.python}-{self.torch}"


def parse(text: str) -> Pair:
    """The pair that an argument means; ValueError for one that means none."""
    found = re.fullmatch(r"(3\.\d+):(\d+(?:\.\d+)+|" + "|".join(NAMED) + ")", text)
    if found is None:
        example = 'make matrix MATRIX="3.13:newest"'
        raise ValueError(f"MATRIX must be pairs of Python and torch, got {text!r}. Try: {example}")
    python, torch = found.groups()
    if torch in NAMED:
        file, pattern = NAMED[torch]
        torch = re.search(pattern, (ROOT / file).read_text(encoding="utf-8")).group(1)
    return Pair(python, torch + ".0" * (2 - torch.count(".")))


def interpreter(version: str) -> str | None:
    """A Python of that version that starts: on PATH, or among pyenv's, which puts names on PATH that may not start."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [sys.executable, shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", ask], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return str(candidate)
    return None


def run_pair(pair: Pair, parts: list[str]) -> tuple[str, str]:
    """("ok" or "FAILED" or "skipped", and what came of each part or why there is none)."""
    python = interpreter(pair.python)
    if python is None:
        return "skipped", f"there is no Python {pair.python} here"
    free = shutil.disk_usage(MATRIX).free / 1e9
    if not pair.venv.is_dir() and free < NEEDED_GB:
        return "skipped", f"{free:.1f} GB of disk are free, and about {NEEDED_GB} are needed"
    pins = MATRIX / f"{pair.venv.name}.txt"
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins.write_text(re.sub(r"(?m)^torch==.*$", f"torch=={pair.torch}", pinned), encoding="utf-8")
    log = MATRIX / f"{pair.venv.name}.log"
    with log.open("w", encoding="utf-8") as file:
        set_up = [python, "tools/setup.py", "--venv", pair.venv, "--pins", pins]
        tests = [pair.venv / "bin" / "python", "tools/run_tests.py", *parts]
        output = {"stdout": file, "stderr": subprocess.STDOUT}
        if subprocess.call(set_up, cwd=ROOT, **output):
            return "FAILED", "its environment could not be made"
        failed = subprocess.call(tests, cwd=ROOT, **output)
    summary = log.read_text(encoding="utf-8", errors="replace").partition("----- summary\n")[2]
    outcomes = [" ".join(line.split()[:2]) for line in summary.splitlines() if not line.startswith(" ")]
    return ("FAILED" if failed else "ok"), ", ".join(outcomes)


def show_failures(pair: Pair) -> None:
    """The summary of a pair's log, which says what failed and how; its last lines where it did not come so far."""
    log = (MATRIX / f"{pair.venv.name}.log").read_text(encoding="utf-8", errors="replace")
    lines = log.partition("----- summary\n")[2].splitlines() or log.splitlines()[-12:]
    print(*(f"    {line}" for line in lines), sep="\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="", help="those of run_tests.py, separated by spaces")
    parser.add_argument("pairs", nargs="+")
    options = parser.parse_args()
    try:
        pairs = [parse(text) for text in options.pairs]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    MATRIX.mkdir(exist_ok=True)
    lines, failed = [], False
    for pair in pairs:
        print(f"{pair}: what it prints is in {pair.venv.relative_to(ROOT)}.log", flush=True)
        began = time.perf_counter()
        outcome, details = run_pair(pair, options.parts.split())
        lines.append(f"{pair!s:<12} {outcome:<8} {time.perf_counter() - began:6.0f} s   {details}")
        if outcome == "FAILED":
            failed = True
            show_failures(pair)
    print("\n----- Python:torch", *lines, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
