"""All exercises: importing this registers them in the order of the course.

The notebook's kernel does, through the entry point "distlab.exercises" in pyproject.toml; a rank imports only the
module of the exercise that it is given.
"""

# ruff: noqa: F401
# isort: off
from distlab_course.exercises import start_here, point_to_point, ranks_that_wait, collectives, communication_costs
from distlab_course.exercises import ring_all_reduce, data_parallelism, distributed_data_parallel, launching
from distlab_course.exercises import more_messages, faster_all_reduces, overlap_and_scaling, fewer_bytes
from distlab_course.exercises import stop_and_resume, initialization, backends, logs_and_errors, remote_calls, servers
from distlab_course.exercises import split_models, sharding, tensors_over_ranks, pipelines, more_dimensions
from distlab_course.exercises import several_hosts, addresses, slow_network, ten_thousand_gpus
