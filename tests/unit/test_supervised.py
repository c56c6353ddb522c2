"""A thread of distlab's that fails: it reports, and says that what it served is lost."""

import pytest

from distlab.supervised import SupervisedThread


class Serving(SupervisedThread):
    """Notes what it is asked to do; raises where it is told to."""

    def __init__(self, **raising):
        super().__init__("distlab-of-a-test")
        self.raising = raising
        self.done = []

    def step(self, name):
        self.done.append(name)
        if name in self.raising:
            raise self.raising[name]

    def serve(self):
        self.step("serve")

    def on_error(self, error):
        assert error is self.raising["serve"]
        self.step("on_error")

    def on_end(self):
        self.step("on_end")


def ended(**raising):
    thread = Serving(**raising)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    return thread.done


def test_a_thread_that_has_done_its_work_says_that_it_is_gone(threads_end_well):
    assert ended() == ["serve", "on_end"]


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), MemoryError(), SystemExit(), KeyboardInterrupt()], ids=repr
)
def test_whatever_ends_a_thread_is_reported_first(threads_end_well, error):
    """Python says nothing at all of a SystemExit on a thread."""
    assert ended(serve=error) == ["serve", "on_error", "on_end"]


def test_a_report_that_fails_does_not_hide_that_the_thread_is_gone(monkeypatch):
    """Python prints the traceback then, which is better than nothing."""
    printed = []
    monkeypatch.setattr("threading.excepthook", printed.append)
    failing = OSError("no stderr")
    assert ended(serve=ZeroDivisionError(), on_error=failing) == ["serve", "on_error", "on_end"]
    assert [shown.exc_value for shown in printed] == [failing]
