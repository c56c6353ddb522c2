"""The exercises of the notebooks, one file for each notebook or topic; importing this registers them in their order.

distlab finds it through the entry point "distlab.exercises" in pyproject.toml.
"""

# ruff: noqa: F401
# isort: off
from distlab_course.exercises import start_here, point_to_point, collectives, ring_all_reduce
from distlab_course.exercises import data_parallelism, distributed_data_parallel, initialization, launching
from distlab_course.exercises import remote_calls, sharding, pipelines, hosts
