"""What a prediction says of memory: a table by line of the program, and a picture over the step.

Called by prediction.py, on the notebook's kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distlab.tables import Table, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from distlab_predict.prediction import Prediction

MOST_LINES = 20  # of the table
NO_LINE = "(no line of the program)"


def by_line(prediction: Prediction) -> Table:
    """What is there at the peak, by the line of the program that made it, the largest first."""
    recording = prediction.use.recording
    rows = []
    for made in recording.held.made[:MOST_LINES]:
        line = made.line or NO_LINE
        rows.append((line, made.kind, f"{made.storages:,}", format_bytes(made.num_bytes)))
    rest = recording.held.made[MOST_LINES:]
    if rest:
        storages = sum(made.storages for made in rest)
        size = sum(made.num_bytes for made in rest)
        rows.append((f"{len(rest)} other lines", "", f"{storages:,}", format_bytes(size)))
    total = sum(recording.peak.values())
    rows.append(("together", "", "", format_bytes(total)))
    title = f"Predicted: what memory holds at its peak, rank {recording.rank}"
    notes = ("The memory of each stream counts at the time when it holds most.",)
    heads = ("made by", "as", "storages", "size")
    return Table(title, heads, tuple(rows), "llrr", notes)


def plot(prediction: Prediction) -> Axes:
    """Draw what the memory of the rank that needs most holds, during its last step."""
    from distlab.plotting.areas import memory_over_time

    recording = prediction.use.recording
    number = [one is recording for one in prediction.recordings].index(True)
    begin, end = prediction.window
    times = [0.0]
    levels = [dict(recording.held.levels[0].sizes)]
    for level in recording.held.levels:
        now = end
        if level.node < len(recording.nodes):
            now = prediction.times[number][level.node][0]
        # the program runs ahead of its device, and of streams that wait
        now = min(max(now - begin, times[-1]), end - begin)
        times.append(now)
        levels.append(level.sizes)
    times.append(end - begin)
    levels.append(levels[-1])
    kinds = dict.fromkeys(kind for level in levels for kind in level)
    sizes = {kind: [level.get(kind, 0) for level in levels] for kind in kinds}
    limits = {}
    if prediction.device.name:
        limits["reserved by torch"] = float(prediction.reserved)
    if prediction.device.memory is not None:
        limits["the device's memory"] = prediction.device.memory
    title = f"predicted, not measured: memory of rank {recording.rank} in a step"
    return memory_over_time(times, sizes, limits, title)
