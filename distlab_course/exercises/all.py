"""All exercises: importing this module registers them in the order of the course.

distlab imports it in the notebook's kernel, through the entry point "distlab.exercises" in
pyproject.toml; a rank imports only the module of the exercise that it is given.
"""

# Each import registers exercises, so the order of the imports is that of `distlab.exercises()`.
# ruff: noqa: F401
# isort: off
from distlab.checking import name_labs
from distlab_course.exercises import (
    start_here,
    point_to_point,
    ranks_that_wait,
    collectives,
    communication_costs,
)
from distlab_course.exercises import (
    ring_all_reduce,
    data_parallelism,
    distributed_data_parallel,
    launching,
    calls_that_do_not_match,
)
from distlab_course.exercises import (
    more_messages,
    faster_all_reduces,
    overlap_and_scaling,
    fewer_bytes,
)
from distlab_course.exercises import (
    stop_and_resume,
    silent_mistakes,
    initialization,
    backends,
    logs_and_errors,
    stopped_jobs,
    preemption,
    remote_calls,
    servers,
)
from distlab_course.exercises import (
    split_models,
    sharding_by_hand,
    sharding,
    tensors_over_ranks,
    pipelines,
    more_dimensions,
    one_program,
)
from distlab_course.exercises import one_rank
from distlab_course.exercises import several_hosts, addresses, slow_network, ten_thousand_gpus

name_labs(
    {
        "00": "Start here",
        "01": "Point to point",
        "02": "Ranks that wait",
        "03": "Collectives: one call that every rank makes",
        "04": "What communication costs",
        "05": "Ring all-reduce",
        "06": "Data parallelism from scratch",
        "07": "DistributedDataParallel",
        "08": "Launching",
        "09": "Calls that do not match",
        "10": "More messages and collectives",
        "11": "Faster all-reduces",
        "20": "Overlap and scaling",
        "21": "Fewer bytes",
        "22": "Stop and resume",
        "23": "Silent mistakes",
        "30": "Initialization",
        "31": "Backends",
        "32": "Logs, errors, elastic",
        "33": "When a job stops",
        "34": "Preempted",
        "40": "Remote calls",
        "41": "Servers",
        "42": "Split models over RPC",
        "49": "Sharding by hand",
        "50": "Sharding",
        "51": "Tensors over ranks",
        "52": "Pipelines",
        "53": "More dimensions, and choosing",
        "54": "One program, four dimensions",
        "55": "Fast on one rank first",
        "60": "Several hosts",
        "61": "When it does not connect",
        "62": "A slow network",
        "63": "Ten thousand GPUs",
    }
)
