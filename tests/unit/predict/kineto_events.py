"""Events as Kineto writes them, for traces that tests make.

The names of the fields are those of traces of torch 2.13 on CPUs, and of the A100 in
facebookresearch/HolisticTraceAnalysis, tests/data/nccl_parser_config.
"""

import gzip
import json
from pathlib import Path

PROCESS, MAIN, GLOO = 100, 100, 120  # a process, its first thread and one of gloo's


def operator(name, begin, microseconds, dims=(), dtypes=(), thread=MAIN):
    """An operator that a rank's thread has called."""
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": PROCESS,
        "tid": thread,
        "ts": begin,
        "dur": microseconds,
        "args": {
            "External id": 5,
            "Record function id": 0,
            "Concrete Inputs": [""] * len(dims),
            "Input type": list(dtypes),
            "Input Dims": [list(sizes) for sizes in dims],
            "Ev Idx": 7,
        },
    }


def launch(begin, number, thread=MAIN):
    """A call that launches a kernel."""
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": PROCESS,
        "tid": thread,
        "ts": begin,
        "dur": 1,
        "args": {"External id": 5, "cbid": 211, "correlation": number},
    }


def kernel(begin, microseconds, number, name="ampere_sgemm_128x64_tn", **carried):
    """What a GPU has run."""
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": begin,
        "dur": microseconds,
        "args": {"External id": 5, "device": 0, "stream": 7, "correlation": number, **carried},
    }


def nccl(begin, microseconds, name, sent, received, ranks, dtype="Float"):
    """A kernel of NCCL; `sent` and `received` are numbers of elements."""
    return kernel(
        begin,
        microseconds,
        999,
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        **{
            "Collective name": name,
            "In msg nelems": sent,
            "Out msg nelems": received,
            "Group size": ranks,
            "dtype": dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(ranks))),
        },
    )


def gloo(begin, microseconds, elements, name="all_reduce"):
    """A collective of gloo, as its own thread notes it."""
    event = operator(f"gloo:{name}", begin, microseconds, [[elements]], ["float"], GLOO)
    return event | {"cat": "user_annotation"}


def called(begin, microseconds, name, *sizes):
    """A call of a group, as the program's thread notes it: `sizes` are those of its arguments."""
    dtypes = ["float"] * len(sizes)
    return operator(f"c10d::{name}", begin, microseconds, sizes, dtypes)


def write(path: Path, events, ranks=2, rank=0) -> Path:
    """Write a trace; one whose name ends in .gz is compressed."""
    content = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "record_shapes": 1,
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": ranks, "pg_count": 1},
        "traceEvents": [{"ph": "M", "name": "process_name", "pid": PROCESS, "args": {}}, *events],
        "traceName": str(path),
    }
    raw = json.dumps(content).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path
