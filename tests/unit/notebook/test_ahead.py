"""The start ahead of a cluster, where it fails: without any process."""

import pytest

from distlab.errors import ClusterError
from distlab.notebook import ahead
from distlab.notebook.plan import Plan
from distlab.notebook.start_methods import FORK

PLAN = Plan(2, "gloo", "tcp", FORK, timeout=60.0, threads=1)


def fails(error):
    raise error


def taken(begun):
    """What the next cluster gets of a start ahead."""
    begun.start()
    return begun.take(PLAN)


@pytest.mark.parametrize(
    "error",
    [ClusterError("no port"), OSError("disk full"), ZeroDivisionError("of a test"), SystemExit()],
    ids=repr,
)
def test_a_start_ahead_that_fails_says_nothing(threads_end_well, monkeypatch, error):
    """Nobody has asked for it; a cluster that is asked for says what is wrong."""
    monkeypatch.setattr(ahead, "start_processes", lambda plan: fails(error))
    assert taken(ahead.Ahead()) is None


class NotEnding:
    can_fork = True

    def can_serve(self, plan):
        return True

    def stop(self):
        raise ZeroDivisionError("of a test")


def test_processes_that_do_not_end_well_are_not_used(threads_end_well, monkeypatch):
    """Nor does the thread that ends them say so."""
    monkeypatch.setattr(ahead, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(ahead, "start_processes", lambda plan: NotEnding())
    begun = ahead.Ahead()
    begun.start()
    begun.join()
    assert begun.take(PLAN) is None


def test_processes_that_are_there_are_used_although_the_wait_for_a_cluster_failed(
    threads_end_well, monkeypatch
):
    """The thread is gone, so nobody would end them; the next cluster takes them."""
    kept = NotEnding()
    begun = ahead.Ahead(kept)
    monkeypatch.setattr(begun._wanted, "wait", lambda seconds: fails(ZeroDivisionError()))
    assert taken(begun) is kept
