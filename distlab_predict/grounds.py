"""What the time of a predicted step rests on, as a table.

Called by prediction.py, on the notebook's kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from distlab.simulated.measured import Measured
from distlab.tables import Table, format_seconds
from distlab_predict.nodes import ATTENTION, CONVOLUTION, GROUPED, PRODUCT, UNKNOWN, Kernel
from distlab_predict.timeline import LAUNCH
from distlab_predict.uncertainty import UNCERTAINTIES, costs_of

if TYPE_CHECKING:
    from distlab_predict.prediction import Prediction

KINDS = {
    PRODUCT: "products of matrices",
    GROUPED: "grouped products",
    ATTENTION: "attention",
    CONVOLUTION: "convolutions",
}
BASES = {
    "measured": "measured",
    "scaled": "scaled from measured sizes",
    "extrapolated": "far from measured sizes",
    "shape": "by a rule for shapes",
    "bytes": "by their bytes",
    "peak": "by a share of the peak",
    "network": "by formulas of the network",
    "launch": "by the processor",
    "unknown": "operations are unknown",
}
COMMUNICATION = "exposed communication"
LAUNCHES = "launches"
IDLE = "idle"
MOST_NAMED = 4

Ground = tuple[str, str]  # what takes time, and the basis of its costs


def shares(prediction: Prediction) -> dict[Ground, float]:
    """The shares of the step by what takes time and what its costs rest on, the largest first.

    They are of the rank that computes longest, and 1 together.
    """
    computing: defaultdict[Ground, float] = defaultdict(float)
    communicating: defaultdict[Ground, float] = defaultdict(float)
    for node, cost, took in costs_of(prediction, prediction.busiest):
        if isinstance(node, Kernel):
            computing[_kind(node), cost.basis] += took
        else:
            communicating[COMMUNICATION, cost.basis] += took
    found = _scaled(computing, prediction.computing / prediction.seconds)
    found |= _scaled(communicating, prediction.exposed / prediction.seconds)
    found[LAUNCHES, LAUNCH] = prediction.launches / prediction.seconds
    found[IDLE, ""] = prediction.idle / prediction.seconds
    largest_first = sorted(found, key=found.__getitem__, reverse=True)
    return {ground: found[ground] for ground in largest_first if found[ground] > 0}


def _scaled(seconds: Mapping[Ground, float], whole: float) -> dict[Ground, float]:
    """The parts of a share, which what overlaps does not make larger."""
    total = sum(seconds.values())
    if not total:
        return {}
    return {ground: whole * one / total for ground, one in seconds.items()}


def _kind(kernel: Kernel) -> str:
    """What a kernel is, in words."""
    return KINDS.get(kernel.kind, "other operators")


def table(prediction: Prediction) -> Table:
    """What the time of a step rests on, and how wrong that may be."""
    rows = []
    used = []
    for (what, basis), share in shares(prediction).items():
        name = what
        known = ""
        if basis:
            name = f"{what}, {BASES[basis]}"
            known = f"± {UNCERTAINTIES[basis].both:.0%}"
            used.append(basis)
        rows.append((name, f"{share:.1%}", known))
    notes = []
    for basis in dict.fromkeys(used):
        notes.append(f"{BASES[basis]}: {UNCERTAINTIES[basis].why}")
    measured = prediction.device.measured
    if measured is not None:
        notes += _from_trace(measured)
    notes += _unknown(prediction)
    heads = ("", "of the step", "known within")
    return Table("What the time rests on", heads, tuple(rows), "lrr", tuple(notes))


def _from_trace(measured: Measured) -> list[str]:
    """Notes on a trace: what of it the program has, and what of a step it explains."""
    source = measured.source
    notes = [f"{measured.share:.0%} of the kernels in {source}, by their time, are predicted"]
    if measured.explained:
        step = format_seconds(measured.step).strip()
        explained = format_seconds(measured.explained).strip()
        notes.append(f"a step in {source} took {step}, its kernels and calls explain {explained}")
    return notes


def _unknown(prediction: Prediction) -> list[str]:
    """A note that names the operators whose operations nobody knows."""
    names = set()
    for recording in prediction.recordings:
        first, after_last = recording.steps[-1]
        for node in recording.nodes[first:after_last]:
            if isinstance(node, Kernel) and node.kind == UNKNOWN:
                names.add(node.name)
    if not names:
        return []
    named = sorted(names)[:MOST_NAMED]
    if len(names) > MOST_NAMED:
        named.append("...")
    return [f"operators without a cost: {len(names)} ({', '.join(named)})"]
