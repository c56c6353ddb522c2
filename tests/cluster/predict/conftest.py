"""The process that records programs ends with the tests of a module, which look whether something
is left.
"""

import pytest

from distlab_predict.predict import RECORDER


@pytest.fixture(autouse=True, scope="module")
def recorder_ends(nothing_left):
    yield
    RECORDER.stop()
