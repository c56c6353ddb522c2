"""The process that records ends with the tests of a module, which look whether anything is left."""

import pytest

import distlab


@pytest.fixture(autouse=True, scope="module")
def recorder_ends(nothing_left):
    yield
    distlab.predict._recorder.stop()
