"""The process that records imports torch once for the tests of all modules."""

import pytest

import distlab


@pytest.fixture(autouse=True, scope="session")
def recorder_ends(shared):
    """Before the last look at whether any process is left."""
    yield
    distlab.predict._recorder.stop()
