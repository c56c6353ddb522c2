"""Random small programs without an end: `make fuzz`.

tests/unit/diagnosis/test_oracle.py does the same for a fixed seed. This one runs until it is
interrupted, or for so many seconds; where the judges of tests/unit/diagnosis/oracle.py disagree, it
prints the seed and the smallest program on which they still do, and ends with status 1.

    python -m tools.fuzz [SECONDS] [FIRST SEED]
"""

import itertools
import math
import sys
import time
from random import Random

from tests.unit.diagnosis.oracle import differences, random_program, smallest, text, three_ranks

REPORT_SECONDS = 10


def main(limit: float, first: int) -> int:
    """Try programs for `limit` seconds, from a seed on; returns the exit status."""
    began = time.monotonic()
    reported = began
    duration = "until you interrupt"
    if limit < math.inf:
        duration = f"for {limit:g} s"
    print(f"Programs from seed {first} on, {duration}.")
    for seed in itertools.count(first):
        program = random_program(Random(seed))
        if differences(program, seed):
            found, of = smallest(program, [seed, *range(30)])
            print(f"Seed {seed}, and for this program seed {of}:\n{text(found)}")
            print(*differences(found, of), sep="\n")
            return 1
        now = time.monotonic()
        if now - reported > REPORT_SECONDS:
            reported = now
            print(f"{seed + 1 - first} programs, no difference", flush=True)
        if now - began > limit:
            print(f"{seed + 1 - first} programs from seed {first} to {seed}: no difference")
            return 0


if __name__ == "__main__":
    _, *given = sys.argv
    seconds = math.inf
    start = int(time.time())
    if given and given[0]:
        seconds = float(given[0])
    if len(given) > 1 and given[1]:
        start = int(given[1])
    with three_ranks():
        try:
            sys.exit(main(seconds, start))
        except KeyboardInterrupt:
            print("interrupted; no difference so far")
