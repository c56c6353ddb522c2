"""The figures that one lesson draws: plain data in, a matplotlib figure or axes out, in the style of distlab.plotting.

Called by the notebooks, in their kernel: `from distlab_course import figures`.
"""

# ruff: noqa: F401 - what is imported here are the names of the package
from distlab_course.figures.groups import graph, handshake
from distlab_course.figures.heat import heat_maps
from distlab_course.figures.hosts import clocks, machines
from distlab_course.figures.memory_parts import memory, memory_at
from distlab_course.figures.pipelines import alive, bubbles, pipeline, predictions, quickest
from distlab_course.figures.scaling import latency_bandwidth, speedup, time_against_ranks
from distlab_course.figures.sharding import cuts, mesh, shards
from distlab_course.figures.training import images, staleness
