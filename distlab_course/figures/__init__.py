"""The figures that one lesson draws, in the style of distlab.plotting.

They take plain data, and return a matplotlib figure or axes.

Called by the notebooks, in their kernel: `from distlab_course import figures`.
"""

# ruff: noqa: F401 - what is imported here are the names of the package
from distlab_course.figures.pipelines import bubbles, pipeline, quickest
from distlab_course.figures.processes import clocks, first_errors, graph, handshake, machines
from distlab_course.figures.sharding import cuts, memory, memory_at, mesh, shards
from distlab_course.figures.training import (
    buckets,
    images,
    latency_bandwidth,
    speedup,
    time_against_ranks,
)
from distlab_course.figures.waiting import who_waits
