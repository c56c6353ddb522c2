"""A number without a value is computed with and printed; nothing is decided by it."""

import json
import math
import pickle

import numpy as np
import pytest

from distlab_predict import no_data
from distlab_predict.no_data import NoData
from tests.refused import raised

COMPUTED = {
    "a sum of losses": lambda loss: 0.0 + loss,
    "a mean": lambda loss: sum([loss, loss]) / 2,
    "a negative one": lambda loss: -loss,
    "rounded for a log": lambda loss: round(loss, 3),
    "a power": lambda loss: 2**loss,
    "of numpy": lambda loss: np.exp(loss),
    "perplexity": no_data.changed_math()["exp"],
}
DECIDED = {
    "the best so far": lambda loss: loss < 1.0,
    "equality": lambda loss: loss == 0.0,
    "the smallest": lambda loss: min(loss, 1.0),
    "truth": bool,
    "a whole number": int,
    "rounded up": math.ceil,
}


@pytest.mark.parametrize("what", COMPUTED)
def test_what_is_computed_with_it_has_no_value_either(what):
    assert isinstance(COMPUTED[what](NoData()), NoData)


@pytest.mark.parametrize("what", DECIDED)
def test_nothing_is_decided_by_it(what):
    error = str(raised(NotImplementedError, DECIDED[what], NoData()))
    assert error == no_data.NEEDED


def test_a_comparison_is_decided_where_somebody_answers(monkeypatch):
    monkeypatch.setattr(NoData, "decide", staticmethod(lambda: True))
    loss = NoData()
    assert loss < 1.0
    assert loss > NoData()
    assert min(2.0, loss) is loss
    assert bool(loss)


def test_it_compares_with_itself_and_with_infinity_as_finite_numbers_do():
    loss = NoData()
    assert loss == loss
    assert loss < math.inf
    assert loss > -math.inf
    assert loss != math.inf
    assert loss != None  # noqa: E711


def test_it_prints_that_it_has_none():
    loss = NoData()
    assert f"{loss:.4f} {loss} {loss!r} {[loss]}" == " ".join(["(no data)"] * 3 + ["[(no data)]"])
    assert repr(pickle.loads(pickle.dumps(loss))) == "(no data)"
    assert json.dumps(loss) == "NaN"  # which a log in JSON can hold


def test_it_is_finite_as_the_loss_of_a_training_that_works():
    changed = no_data.changed_math()
    assert changed["isfinite"](NoData())
    assert not changed["isnan"](NoData())
    assert not changed["isinf"](NoData())
    assert np.isfinite(NoData())
    assert not np.isnan(NoData())
    assert changed["isnan"](math.nan)
