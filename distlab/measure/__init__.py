"""Timing of communication: `from distlab.measure import measure`.

`measure` runs on every rank; sweeps and their tables are the notebook's kernel's.
"""

from distlab.measure.timing import BUS_FACTORS, bus_factor, fit_alpha_beta, measure, measure_each  # noqa: F401
from distlab.tables import format_bandwidth, format_bytes, format_seconds  # noqa: F401
