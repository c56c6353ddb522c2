"""A job of torchrun for lab 09: its ranks make calls that do not match, and note their errors.

Called by the notebook, in its kernel, for what its reader should not see before the errors.
"""

import re
from pathlib import Path

PROGRAM = """import traceback
from pathlib import Path

import torch
import torch.distributed as dist

BATCHES = [[32, 32, 32], [32, 32, 32], [32, 32, 0], [32, 32, 32]]  # images of each rank, by step


def train(images):
    gradient = torch.ones(8)
    seen = torch.tensor([1.0 * images])
    if images > 0:
        dist.all_reduce(gradient)
    dist.all_reduce(seen)


dist.init_process_group("gloo")
rank = dist.get_rank()
try:
    for images in BATCHES[rank]:
        train(images)
except RuntimeError:
    Path(f"error{rank}.txt").write_text(traceback.format_exc())
"""
# where the program's own calls are, in a traceback
OWN_LINE = re.compile(r'File ".*/(epoch\.py)", (line \d+), in (train)\n\s+(.*)')
# a call in torch's message, without the devices of its tensors
CALL = re.compile(
    r"(Rank \d+ is running collective:) (CollectiveFingerPrint\("
    r"SequenceNumber=\d+, OpType=\w+, TensorShape=\[[\d, ]*\], TensorDtypes=\w+)"
)


def write_program() -> None:
    """Write epoch.py into the working directory."""
    Path("epoch.py").write_text(PROGRAM)


def shortened(error: str) -> str:
    """The last line of the program in a traceback, torch's message, and the two calls in it."""
    file, line, function, code = OWN_LINE.findall(error)[-1]
    message = error.splitlines()[-1].split(" Rank ")[0]
    lines = [f"{file}, {line} in {function}: {code}", message]
    for rank, call in CALL.findall(error):
        lines += [f"  {rank}", f"    {call}, ...)"]
    return "\n".join(lines)
