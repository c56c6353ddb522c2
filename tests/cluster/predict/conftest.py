"""The process that records programs ends with each module, which counts processes."""

import pytest

from distlab_predict.predict import RECORDER


@pytest.fixture(autouse=True, scope="module")
def recorder_ends(nothing_left):
    yield
    RECORDER.stop()
