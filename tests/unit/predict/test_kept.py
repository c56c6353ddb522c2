"""What is kept of programs has a limit: an older one runs again, and its prediction is the same."""

from types import SimpleNamespace

import pytest

from distlab.wire.messages import Failure
from distlab_predict import predict as module
from distlab_predict.nodes import Run


@pytest.fixture
def ran(monkeypatch):
    """The headers of the runs that were recorded, in their order; those of b"wrong" fail."""
    headers = []

    def record(runs):
        headers.extend(run.header for run in runs)
        return [
            [Failure(0, "ValueError", "x")] if run.header == b"wrong" else [run.header]
            for run in runs
        ]

    monkeypatch.setattr(module, "RECORDER", SimpleNamespace(record=record))
    monkeypatch.setattr(module, "KEPT", {})
    return headers


def outcome(header):
    """What one program's ranks have noted."""
    return module._outcomes([Run(header, (), 2, None, 1, (), "", ())])[0]


def test_the_oldest_program_runs_again(ran):
    programs = [b"%d" % number for number in range(module.MOST_KEPT + 1)]
    first = [outcome(program) for program in programs]
    ran.clear()
    assert [outcome(program) for program in reversed(programs)] == first[::-1]
    assert ran == programs[:1]


def test_a_program_that_raises_runs_each_time(ran):
    """However many others there are: what it raised is not kept, and takes no other's place."""
    for _ in range(module.MOST_KEPT + 1):
        assert isinstance(outcome(b"wrong")[0], Failure)
    assert ran == [b"wrong"] * (module.MOST_KEPT + 1)
    assert module.KEPT == {}
