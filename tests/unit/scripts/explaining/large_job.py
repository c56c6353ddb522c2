"""Dumps of a large job, to measure `distlab explain` with: 512 ranks of 2,000 calls each.

Run by a developer as `python -m tests.unit.scripts.explaining.large_job FOLDER [RANKS]`, before
`time distlab explain FOLDER` on a quiet machine; test_explain.py makes a smaller one.
"""

import pathlib
import sys

from tests.unit.scripts.explaining.dumps import Recorder

CALLS = 2000
SHARD = 8  # ranks that share the parameters; those with equal numbers in it average gradients
BEHIND = 20  # steps that the others have begun when one rank does not come


def recorder(rank, size, late, calls=CALLS):
    """What a rank of this job has recorded: FSDP in eights, gradients averaged across them."""
    row = list(range(rank - rank % SHARD, rank - rank % SHARD + SHARD))
    column = list(range(rank % SHARD, size, SHARD))
    shard, pair = f"shard {rank // SHARD}", f"pair {rank % SHARD}"
    one = Recorder(rank, {"0": list(range(size)), shard: row, pair: column}, buffer=calls)
    for step in range(calls // 3 + 1):
        one.call("all_gather_into_tensor", 30, shard, sizes=((1024, step % 40),), dtype="BFloat16")
        one.call("reduce_scatter_tensor", 31, shard, dtype="BFloat16")
        one.call("all_reduce", 32, pair)
    if rank == late:
        return one
    for _ in range(BEHIND):
        state = "completed"
        if rank in recorder_row(late):
            state = "scheduled"
        one.call("all_gather_into_tensor", 30, shard, state=state, dtype="BFloat16")
        one.call("all_reduce", 32, pair, state="scheduled")
    return one


def recorder_row(rank):
    """The ranks that share parameters with this one."""
    return range(rank - rank % SHARD, rank - rank % SHARD + SHARD)


def write_job(folder, size, calls=CALLS):
    """Write the dumps of so many ranks, the last but three of which does not come."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(size):
        recorder(rank, size, late=size - 3, calls=calls).write(folder)


if __name__ == "__main__":
    write_job(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 512)
