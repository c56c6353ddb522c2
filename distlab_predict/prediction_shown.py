"""What a prediction shows: its table, and the picture of its step.

Called by prediction.py, on the notebook's kernel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distlab.simulated.devices import Device
from distlab.tables import Table, count, format_seconds
from distlab_predict.uncertainty import launching_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from distlab_predict.prediction import Prediction

WORTH_SAYING = 0.01  # of the step
GIBIBYTE = 1 << 30
MEBIBYTE = 1 << 20

Span = tuple[float, float, str, str]  # begin, end, text and kind, as plotting.spans takes them


def table(prediction: Prediction) -> Table:
    """What a step takes."""
    rows = _rate_rows(prediction)
    rows.append(("FLOP/s of the device's peak (MFU)", f"{prediction.mfu:.1%}"))
    rows.append(("computing", share_of_step(prediction, prediction.computing)))
    rows.append(("exposed communication", share_of_step(prediction, prediction.exposed)))
    notes = list(dict.fromkeys(note for one in prediction.recordings for note in one.assumed))
    if waits_for_launches(prediction):
        rows.append(("launches", share_of_step(prediction, prediction.launches)))
        notes.append(_why_it_waits(prediction))
    rows.append(("idle", share_of_step(prediction, prediction.idle)))
    rows += _memory_rows(prediction)
    on = devices(prediction.ranks, prediction.device)
    title = f"Predicted, not measured: {on}, {prediction.network}"
    return Table(title, ("", "predicted"), tuple(rows), "lr", tuple(notes))


def waits_for_launches(prediction: Prediction) -> bool:
    """Whether so much of the step goes by before something is launched that it is worth a word."""
    return prediction.launches > WORTH_SAYING * prediction.seconds


def _why_it_waits(prediction: Prediction) -> str:
    """A sentence on a processor that is slower than its device."""
    recording = prediction.recordings[prediction.busiest]
    first, after_last = recording.steps[-1]
    needs = format_seconds(launching_seconds(prediction, prediction.busiest)).strip()
    waits = sum(first < wait.before <= after_last for wait in recording.waits)
    number = after_last - first
    words = f"launches: the step has {number:,}, for which the processor needs {needs}"
    if waits:
        words += f", and waits {count(waits, 'time')} for a value of the device"
    return words


def devices(ranks: int, device: Device) -> str:
    """What a program runs on: "8 H100", or "8 ranks" of a device without a name."""
    if device.name:
        return f"{ranks:,} {device.name}"
    return count(ranks, "rank")


def _rate_rows(prediction: Prediction) -> list[tuple[str, str]]:
    """Rows on time, with the interval in the last one."""
    step = format_seconds(prediction.seconds)
    tokens = prediction.tokens_per_second
    if tokens is None:
        shortest, longest = prediction.interval
        between = f"from {format_seconds(shortest).strip()} to {format_seconds(longest).strip()}"
        return [("a step", f"{step.strip()}, {between}")]
    lowest, highest = prediction.rate_interval
    between = f"from {_three_digits(lowest)} to {_three_digits(highest)}"
    rate = f"{tokens:,.0f}, {between}"
    return [("a step", step), ("tokens a second, each device", rate)]


def _memory_rows(prediction: Prediction) -> list[tuple[str, str]]:
    """Rows on memory: the peak, its parts from the largest on, and whether it fits."""
    memory = prediction.memory
    peak = sum(memory.values())
    rows = [("memory at its peak", _in_unit_of(peak, peak))]
    for kind in sorted(memory, key=memory.__getitem__, reverse=True):
        rows.append((f"  {kind}", _in_unit_of(peak, memory[kind])))
    if prediction.device.memory is not None:
        fits = "yes"
        if not prediction.fits:
            fits = f"no, it has {gibibytes(prediction.device.memory)}"
        elif peak > prediction.device.memory:
            fits = "only after giving back what is kept for later"
        rows.append(("fits into the device", fits))
    return rows


def plot(prediction: Prediction) -> Axes:
    """Draw the last step of each recorded rank: when it computes, and when messages travel."""
    from distlab.plotting.lanes import spans

    lanes = {}
    for number, recording in enumerate(prediction.recordings):
        name = f"rank {recording.rank}"
        lanes[f"{name} computes"] = _kernel_spans(prediction, number)
        lanes[f"{name}'s messages"] = _message_spans(prediction, number)
    drawn = {name: bars for name, bars in lanes.items() if bars}
    on = devices(prediction.ranks, prediction.device)
    title = f"predicted, not measured: a step on {on}"
    return spans(drawn, title=title)


def _kernel_spans(prediction: Prediction, number: int) -> list[Span]:
    """When a recorded rank computes, for a lane."""
    moments = prediction.moments(number, "compute")
    return [(since, until, "", "compute") for since, until, _ in moments]


def _message_spans(prediction: Prediction, number: int) -> list[Span]:
    """When messages of a recorded rank travel, for a lane: beside computing, or exposed."""
    bars = []
    for since, until, going in prediction.moments(number, "compute", "move"):
        if "move" in going:
            kind = "move" if "compute" in going else "exposed"
            bars.append((since, until, "", kind))
    return bars


def _in_unit_of(largest: float, num_bytes: float) -> str:
    """A size in the unit that suits the largest one of a column, or in a smaller one if it must."""
    if largest >= GIBIBYTE / 10:
        return gibibytes(num_bytes)
    if largest >= MEBIBYTE / 10:
        return _mebibytes(num_bytes)
    return _kibibytes(num_bytes)


def _three_digits(value: float) -> str:
    """A rate, rounded: "4,310"."""
    digits = 2 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def gibibytes(num_bytes: float) -> str:
    """A number of bytes, in words: "9.0 GiB", and of what would be "0.0 GiB" its MiB or KiB."""
    if 0 < num_bytes < GIBIBYTE / 20:
        return _mebibytes(num_bytes)
    return f"{num_bytes / GIBIBYTE:,.1f} GiB"


def _mebibytes(num_bytes: float) -> str:
    if 0 < num_bytes < MEBIBYTE / 20:
        return _kibibytes(num_bytes)
    return f"{num_bytes / MEBIBYTE:,.1f} MiB"


def _kibibytes(num_bytes: float) -> str:
    return f"{num_bytes / 1024:,.1f} KiB"


def share_of_step(prediction: Prediction, seconds: float) -> str:
    """How much of the step so many seconds are: "28.6%"."""
    return f"{seconds / prediction.seconds:.1%}"
