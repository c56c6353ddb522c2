"""Averaging before the gradient leaves for the stage before makes a staircase, which is seen."""

import functools
from dataclasses import replace

import pytest

import distlab
from distlab_course import staircase
from tests.tool import load

FIGURE = load("staircase")
NETWORK = distlab.Network("5 us", "50 GB/s")
DEVICE = distlab.Device("494 TFLOP/s", memory_bandwidth="3.35 TB/s")


@pytest.mark.parametrize("order", FIGURE.TITLES)
def test_the_picture_shows_what_is_predicted(order):
    """Within two percent, and without the optimizer."""
    program = functools.partial(staircase.train, step=getattr(staircase, order))
    predicted = distlab.predict(program, 64, NETWORK, DEVICE)
    drawn = FIGURE.seconds_of(FIGURE.bars_of(order))
    assert predicted.seconds == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize(("copies", "least", "most"), [(1, 1.0, 1.2), (2, 1.5, 2.0)])
def test_without_copies_the_order_hardly_matters(copies, least, most):
    """Nothing is sent then, only copied."""
    stages = 4
    seconds = []
    for step in (staircase.found, staircase.mended):
        size = replace(staircase.LLAMA_7B, layers=stages)
        program = functools.partial(
            staircase.train, step=step, size=size, stages=stages, microbatches=4
        )
        seconds.append(distlab.predict(program, stages * copies, NETWORK, DEVICE).seconds)
    found, mended = seconds
    assert least < found / mended < most
