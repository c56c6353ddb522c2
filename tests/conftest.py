"""What tests of several folders need."""

import signal

import pytest


@pytest.fixture
def python_handles_sigint():
    """As in a notebook; a background shell ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def progress_file(tmp_path, monkeypatch):
    """Where this test's progress is kept."""
    monkeypatch.setenv("DISTLAB_PROGRESS", str(tmp_path / "progress.json"))
    return tmp_path / "progress.json"


@pytest.fixture
def threads_end_well(monkeypatch):
    """No thread may end with an exception: its traceback would be in the learner's cell."""
    died = []
    monkeypatch.setattr("threading.excepthook", died.append)
    yield
    assert died == []
