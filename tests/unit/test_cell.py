"""What is said of a %%px cell's error when the rank that raised it cannot tell any more; no process is started."""

from types import SimpleNamespace

import pytest
from ipyparallel.error import EngineError

from distlab.cell import _failure_of_cell

REPLY = SimpleNamespace(ename="ValueError", evalue="no")


def asked(error):
    def get(timeout):
        raise error

    return SimpleNamespace(get=get)


@pytest.mark.parametrize("question", [None, asked(TimeoutError()), asked(EngineError())], ids=["gone", "busy", "ended"])
def test_ipyparallels_words_stand_in_for_the_ranks(question):
    """The rank has ended since, does not answer in time, or ends instead of answering."""
    failure = _failure_of_cell(1, REPLY, question)
    assert (failure.rank, failure.kind, failure.message) == (1, "ValueError", "no")


def test_another_error_is_no_answer_either_and_is_seen():
    """What nobody expects is raised."""
    with pytest.raises(KeyError):
        _failure_of_cell(1, REPLY, asked(KeyError("x")))
