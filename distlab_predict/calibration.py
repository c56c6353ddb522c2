"""A device whose predictions fit what was measured.

Called by prediction.py, on the notebook's kernel. A measured step shows the device's efficiency. If
some costs were slower than predicted, the efficiency that fits would be higher. The device
remembers these other efficiencies, so that intervals of later predictions know what the step has
shown.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distlab import arguments
from distlab.simulated.devices import Device
from distlab.tables import format_seconds
from distlab_predict import kineto, trace_rates
from distlab_predict.uncertainty import bases, slowed

if TYPE_CHECKING:
    from distlab_predict.prediction import Prediction

LOWEST = 0.01  # efficiency
TRIES = 30
# How close to a step's time a try must come, as a share of it. An efficiency is rounded to 1e-4; a
# tenth of a cost is tried for an interval, so 1e-3 changes it by a hundredth of itself.
CLOSE = 3e-5
CLOSE_FOR_INTERVALS = 1e-3


def from_seconds(prediction: Prediction, seconds: float) -> Device:
    """The device at the efficiency at which the step takes so long.

    Args:
        prediction: of the step.
        seconds: that it took.

    Raises:
        ArgumentError: not a number above 0, or no efficiency makes the step as short, or as long.
    """
    seconds = arguments.seconds("seconds", seconds)
    found = _fitting(prediction, seconds, prediction.device.efficiency, CLOSE)
    if found is None:
        least = format_seconds(_seconds_at(prediction, 1.0)).strip()
        most = format_seconds(_seconds_at(prediction, LOWEST)).strip()
        advice = (
            "A step takes so long on this device with all of its FLOP/s, and with 1 %. If yours "
            "does not, something else is described wrongly: the processor that launches kernels "
            "(host=), the device or the network."
        )
        arguments.refuse("seconds", f"between {least} and {most}", seconds, advice)
    device = replace(prediction.device, efficiency=round(found, 4), if_slower=())
    calibrated = replace(prediction, device=device)
    others = []
    for basis in bases(calibrated):
        slower = slowed(calibrated, basis)
        other = _fitting(slower, seconds, device.efficiency, CLOSE_FOR_INTERVALS)
        # costs may be so slow that no efficiency makes up for them; then the highest comes nearest
        others.append((basis, 1.0 if other is None else other))
    return replace(device, if_slower=tuple(others))


def from_trace(prediction: Prediction, path: str | Path) -> Device:
    """The device with what a trace says of its kernels and calls.

    How long the traced step is predicted with them is noted beside how long it took. What is
    missing is time in which neither a kernel nor a call ran: Python was not ahead of the device, or
    data was not there.

    Args:
        prediction: of the program that was traced, on as many ranks.
        path: of the trace of one rank, .json or .json.gz.

    Raises:
        ArgumentError: it is no such trace, has no shapes, or is of another program.
    """
    measured = trace_rates.match(kineto.read(path), prediction)
    device = replace(prediction.device, measured=measured)
    explained = replace(prediction, device=device).seconds
    return replace(device, measured=replace(measured, explained=explained))


def _fitting(prediction: Prediction, seconds: float, guess: float, close: float) -> float | None:
    """The efficiency at which the step takes so long; None if it never does.

    Time is nearly a line over 1 / efficiency, so each try is where the line through the last two of
    them says. The first line is that of a step that only computes. To time a large program takes
    seconds, and three or four tries are enough.

    Args:
        prediction: of the step.
        seconds: that it took.
        guess: an efficiency near it.
        close: how close is enough, as a share of the seconds.
    """
    before = 0.0
    off_before = -seconds
    inverse = 1 / guess
    for _ in range(TRIES):
        off = _seconds_at(prediction, 1 / inverse) - seconds
        if abs(off) < close * seconds:
            return 1 / inverse
        if off == off_before:  # no line: efficiency does not change this step
            return None
        following = inverse - off * (inverse - before) / (off - off_before)
        following = min(max(following, 1.0), 1 / LOWEST)
        if following == inverse:  # at one of the ends, and still off
            return None
        before, off_before = inverse, off
        inverse = following
    return 1 / inverse


def _seconds_at(prediction: Prediction, efficiency: float) -> float:
    """How long the step takes on a device with this efficiency."""
    device = replace(prediction.device, efficiency=efficiency, if_slower=())
    return replace(prediction, device=device).seconds
