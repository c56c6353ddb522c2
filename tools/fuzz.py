"""Random small programs without an end: `make fuzz`.

It is what tests/unit/diagnosis/test_oracle.py does for a fixed seed.

It runs until it is interrupted, or for so many seconds; where the judges of
tests/unit/diagnosis/oracle.py disagree, it prints the seed and the smallest program on which they
still do, and ends with status 1.

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
    began = reported = time.monotonic()
    print(
        f"Programs from seed {first} on, "
        + (f"for {limit:g} s." if limit < math.inf else "until you interrupt.")
    )
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
    given = dict(enumerate(sys.argv))
    seconds = float(given.get(1) or math.inf)
    start = int(given.get(2) or time.time())
    with three_ranks():
        try:
            sys.exit(main(seconds, start))
        except KeyboardInterrupt:
            print("interrupted; no difference so far")
