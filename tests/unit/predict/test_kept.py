"""What is kept of programs has a limit: an older one runs again, and its prediction is the same."""

import inspect
import pickle
import pydoc
from types import SimpleNamespace

import pytest

import distlab
from distlab.wire.messages import Failure
from distlab_predict import predict as module
from distlab_predict.nodes import Run


@pytest.fixture
def ran():
    """The headers of the runs that are recorded, in their order, and a predictor.

    Runs with the header b"wrong" fail.
    """
    headers = []

    def record(runs):
        headers.extend(run.header for run in runs)
        return [
            [Failure(0, "ValueError", "x")] if run.header == b"wrong" else [run.header]
            for run in runs
        ]

    return headers, module.Predict(SimpleNamespace(record=record))


def outcome(predict, header):
    """What one program's ranks have noted."""
    return predict._outcomes([Run(header, (), 2, None, 1, (), "", ())])[0]


def test_the_oldest_program_runs_again(ran):
    headers, predict = ran
    programs = [b"%d" % number for number in range(module.MOST_KEPT + 1)]
    first = [outcome(predict, program) for program in programs]
    headers.clear()
    assert [outcome(predict, program) for program in reversed(programs)] == first[::-1]
    assert headers == programs[:1]


def test_a_program_that_raises_runs_each_time(ran):
    """However many others there are: what it raised is not kept, and takes no other's place."""
    headers, predict = ran
    for _ in range(module.MOST_KEPT + 1):
        assert isinstance(outcome(predict, b"wrong")[0], Failure)
    assert headers == [b"wrong"] * (module.MOST_KEPT + 1)
    assert predict._kept == {}


def test_there_is_one_of_them_in_each_process():
    """A function that a notebook sends to a rank finds the rank's own."""
    assert pickle.loads(pickle.dumps(distlab.predict)) is distlab.predict


def test_help_shows_both_ways_to_call_it():
    words = pydoc.plain(pydoc.render_doc(distlab.predict))
    assert "What a training program would do on many ranks" in words
    assert "__call__(self, program: " in words
    assert "sweep(" in words
    assert [*inspect.signature(distlab.predict).parameters][:2] == ["program", "ranks"]
