"""The exercises of the notebooks, one file for each notebook or topic; importing this registers them in their order.

distlab finds it through the entry point "distlab.exercises" in pyproject.toml.
"""

# isort: off
from distlab_course.exercises import (
    start_here,
    point_to_point,
    collectives,
    coordination,
    ring_all_reduce,
    data_parallelism,
    distributed_data_parallel,
    initialization,
    launching,
    remote_calls,
    parameter_server,
    sharding,
    tensor_parallel,
    pipelines,
    hosts,
    addresses,
    slow_links,
)
# isort: on

__all__ = [
    "addresses",
    "collectives",
    "coordination",
    "data_parallelism",
    "distributed_data_parallel",
    "hosts",
    "initialization",
    "launching",
    "parameter_server",
    "pipelines",
    "point_to_point",
    "remote_calls",
    "ring_all_reduce",
    "sharding",
    "slow_links",
    "start_here",
    "tensor_parallel",
]
