"""What the recorder's names mean: calls, types and lines as the program has them.

Runs in the command's process, called by recording.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from distlab.wire.messages import DDP_FORWARD
from distlab.wire.source import Line, is_learners, name_of_function

# what the program calls, by the recorder's name without its backend; others are called alike
FUNCTIONS = {
    "ALLGATHER_coalesced": "all_gather_into_tensor",
    "REDUCE_SCATTER_coalesced": "reduce_scatter_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_reduce_barrier": "barrier",
    "all_to_all_v_single": "all_to_all_single",
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
}
# the recorder's names of types that are not torch's own in small letters
TYPES = {
    "BFloat16": "bfloat16",
    "Byte": "uint8",
    "Char": "int8",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "Int": "int32",
    "Long": "int64",
    "Short": "int16",
}
C10D = "distributed_c10d.py"  # where torch's functions that communicate are
# wrappers around them, by name
NO_CALLS = ("wrapper", "inner")
DDP_FILE = "nn/parallel/distributed.py"
OF_DDP = {"__init__": "DistributedDataParallel", "forward": DDP_FORWARD}
BACKWARD = "backward"
# a folder of Python's own files: "/usr/lib/python3.10/"
LIBRARY = "/lib/python3"
# files of C++, whose frames are there if the recorder was asked for them
COMPILED = re.compile(r"\?\?|.*\.(so[.\d]*|c|cc|cpp|cxx|cu|cuh|h|hpp|S)")


def function_of(name: str) -> str:
    """What the program calls, by the recorder's name: "all_reduce" for "nccl:all_reduce"."""
    _, _, own = name.rpartition(":")
    own, _, _ = own.partition(" ")
    return FUNCTIONS.get(own, own)


def type_of(name: str) -> str:
    """A type of tensors as torch writes it: "float32" for "Float"."""
    return TYPES.get(name, name.lower())


# --- frames ---


def lines_of(frames: Sequence[Mapping[str, Any]]) -> tuple[Line, ...]:
    """The program's lines among the frames of a call, outermost first.

    Args:
        frames: as the recorder has them, innermost first, with torch's own.
    """
    torchs = _folder_of_torch(frames)
    lines = []
    for frame in reversed(frames):
        file = str(frame.get("filename", ""))
        if _is_programs(file, torchs):
            function = name_of_function(str(frame.get("name", "")))
            lines.append(Line(int(frame.get("line", 0)), "", function, file))
    return tuple(lines)


def op_of(frames: Sequence[Mapping[str, Any]], name: str) -> str:
    """The function that the program has called, which may have led to several calls.

    Args:
        frames: as the recorder has them, innermost first.
        name: the recorder's name of the call, for one without frames of torch's functions.
    """
    torchs = _folder_of_torch(frames)
    op = ""
    for frame in frames:
        file = str(frame.get("filename", ""))
        if _is_programs(file, torchs):
            break
        op = _function_in(file, str(frame.get("name", ""))) or op
    return op or function_of(name)


def _function_in(file: str, function: str) -> str:
    """The function that a frame of torch's stands for; "" for one that means nothing."""
    if file.endswith(C10D):
        is_call = function not in NO_CALLS and not function.startswith(("_", "<"))
        return FUNCTIONS.get(function, function) if is_call else ""
    if file.endswith(DDP_FILE):
        return OF_DDP.get(function, "")
    if function == BACKWARD and file.endswith(("_tensor.py", "autograd/__init__.py")):
        return BACKWARD
    return ""


def _folder_of_torch(frames: Sequence[Mapping[str, Any]]) -> str:
    """The folder of the torch that ran the job, which may lie anywhere; "" if no frame is in it."""
    for frame in frames:
        file = str(frame.get("filename", ""))
        if file.endswith(f"/distributed/{C10D}"):
            return file.removesuffix(f"distributed/{C10D}")
    return ""


@functools.lru_cache(maxsize=4096)
def _is_programs(file: str, torchs: str) -> bool:
    """Whether a file is the program's, on the machine where it ran."""
    if torchs and file.startswith(torchs):
        return False
    if COMPILED.fullmatch(file):
        return False
    if LIBRARY in file or "/site-packages/" in file or "/dist-packages/" in file:
        return False
    return is_learners(file)
