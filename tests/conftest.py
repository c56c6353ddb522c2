"""What tests of several folders need."""

import signal
import threading

import pytest

BEFORE_TIMEOUT = 1.0  # seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Name a test that hangs just before its timeout ends pytest, which shows only stacks then."""
    limit = _timeout_of_tests(item.config)
    timer = threading.Timer(limit - BEFORE_TIMEOUT, _name, [item, limit])
    timer.daemon = True
    if limit:
        timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()


def _timeout_of_tests(config):
    """Seconds after which pytest-timeout ends a test; 0 without the plugin, or without a limit."""
    if not config.pluginmanager.hasplugin("timeout"):
        return 0.0
    return float(config.getoption("timeout") or config.getini("timeout") or 0)


def _name(item, limit):
    """Write a line that the summary of `make test` shows."""
    terminal = item.config.get_terminal_writer()
    terminal.line(f"\nFAILED {item.nodeid} - it still runs after {limit:g} s")
    terminal.flush()


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
