"""The figures that one lesson draws, in the style of distlab.plotting.

They take plain data, and return a matplotlib figure or axes.

Called by the notebooks, in their kernel: `from distlab_course import figures`.
"""

# ruff: noqa: F401 - what is imported here are the names of the package
from distlab_course.figures.costs import (
    beside_the_model,
    latency_bandwidth,
    speedup,
    time_against_ranks,
)
from distlab_course.figures.formats import spacing
from distlab_course.figures.graphs import graph
from distlab_course.figures.hosts import machines
from distlab_course.figures.in_memory import memory, memory_at
from distlab_course.figures.meeting import first_errors, handshake
from distlab_course.figures.meshes import mesh
from distlab_course.figures.offsets import clocks
from distlab_course.figures.pipelines import alive, bubbles, pipeline, quickest
from distlab_course.figures.programs import dimensions, owners
from distlab_course.figures.restarts import restarts
from distlab_course.figures.sharding import shards
from distlab_course.figures.stale import staleness
from distlab_course.figures.training import buckets, images, throughput
from distlab_course.figures.waiting import who_waits
from distlab_course.figures.weights import cuts
