"""Programs of the zoo as real gloo jobs that hang, and the dumps of their flight recorders.

Run as `python -m tests.cluster.scripts.hanging_jobs FOLDER PROGRAM:RANKS...`, by
test_explained_jobs.py: distlab takes no part in it. It imports torch once and forks the ranks of
all jobs, which run side by side. Each rank writes its dump into FOLDER/PROGRAM-RANKS when nothing
has changed in those of its job for a while, and ends.
"""

import datetime
import os
import pathlib
import sys
import threading
import time
import traceback

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"  # before torch makes its recorder

import torch._dynamo  # noqa: F401  (DDP imports it, which takes each rank seconds)
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

from tests.cluster import zoo_of_collectives  # noqa: F401  (its programs are then in ZOO)
from tests.cluster.zoo import ZOO

LOOKS = 5  # in so many of which the recorder of a rank has not changed
SECONDS_BETWEEN = 0.3
MOST_SECONDS = 240


def run_rank(program, rank, n, folder):
    """Run a program on this process, which ends when its job does not move."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=n,
        timeout=datetime.timedelta(seconds=MOST_SECONDS),
    )
    threading.Thread(target=dump_when_still, args=(rank, n, folder), daemon=True).start()
    try:
        program(rank, n)
    except Exception:
        (folder / f"raised_{rank}").write_text(traceback.format_exc())
    time.sleep(MOST_SECONDS)  # the connections of this rank stay until its job has ended


def dump_when_still(rank, n, folder):
    """Write the dump of this rank when nothing moves on any rank, and end when all have."""
    main_thread = threading.main_thread().ident
    still = folder / f"still_{rank}"
    looks = 0
    last = None
    while looks < LOOKS or len([*folder.glob("still_*")]) < n:
        time.sleep(SECONDS_BETWEEN)
        stack = traceback.format_stack(sys._current_frames()[main_thread])
        now = (_dump_fr_trace(), stack)
        looks = looks + 1 if now == last else 0
        last = now
        if looks >= LOOKS:
            still.touch()
        else:
            still.unlink(missing_ok=True)
    (folder / "dumps" / f"rank_{rank}").write_bytes(last[0])
    while len(os.listdir(folder / "dumps")) < n:
        time.sleep(SECONDS_BETWEEN)
    os._exit(0)


def main(folder, *jobs):
    """Run the jobs, and wait for them."""
    programs = {program.__name__: program for _, program, *_ in ZOO}
    for job in jobs:
        name, _, number = job.partition(":")
        place = pathlib.Path(folder) / f"{name}-{number}"
        (place / "dumps").mkdir(parents=True)
        for rank in range(int(number)):
            if os.fork() == 0:
                try:
                    run_rank(programs[name], rank, int(number), place)
                finally:
                    os._exit(1)
    for _ in jobs:
        while True:
            try:
                os.wait()
            except ChildProcessError:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
