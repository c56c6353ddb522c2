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
CLOSE = 1e-5  # to a step's time; an efficiency is rounded to 1e-4


def from_seconds(prediction: Prediction, seconds: float) -> Device:
    """The device at the efficiency at which the step takes so long.

    Args:
        prediction: of the step.
        seconds: that it took.

    Raises:
        ArgumentError: not a number above 0, or no efficiency makes the step as short, or as long.
    """
    seconds = arguments.seconds("seconds", seconds)
    slow = _seconds_at(prediction, LOWEST)
    fast = _seconds_at(prediction, 1.0)
    if not fast <= seconds <= slow:
        least = format_seconds(fast).strip()
        most = format_seconds(slow).strip()
        advice = (
            "A step takes so long on this device with all of its FLOP/s, and with 1 %. If yours "
            "does not, something else of the device or the network is described wrongly."
        )
        arguments.refuse("seconds", f"between {least} and {most}", seconds, advice)
    efficiency = round(_efficiency(prediction, seconds), 4)
    device = replace(prediction.device, efficiency=efficiency, if_slower=())
    calibrated = replace(prediction, device=device)
    others = []
    for basis in bases(calibrated):
        others.append((basis, _efficiency(slowed(calibrated, basis), seconds)))
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


def _efficiency(prediction: Prediction, seconds: float) -> float:
    """The efficiency at which the step takes so long, or the nearest one to it.

    Time is nearly a line over 1 / efficiency, so each try is where the line through the ends of the
    interval says. An end that stays twice counts half (the Illinois rule), which moves it as well.
    """
    low = 1.0
    high = 1 / LOWEST
    below = _seconds_at(prediction, 1 / low) - seconds
    above = _seconds_at(prediction, 1 / high) - seconds
    if below >= 0:
        return 1.0
    moved = 0
    for _ in range(TRIES):
        middle = low - below * (high - low) / (above - below)
        off = _seconds_at(prediction, 1 / middle) - seconds
        if abs(off) < CLOSE * seconds:
            return 1 / middle
        if off < 0:
            low, below = middle, off
            if moved < 0:
                above /= 2
            moved = -1
        else:
            high, above = middle, off
            if moved > 0:
                below /= 2
            moved = 1
    return 1 / high


def _seconds_at(prediction: Prediction, efficiency: float) -> float:
    """How long the step takes on a device with this efficiency."""
    device = replace(prediction.device, efficiency=efficiency, if_slower=())
    return replace(prediction, device=device).seconds
