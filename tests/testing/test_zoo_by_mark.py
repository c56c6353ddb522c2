"""A broken program in a marked test fails with the report, and the next test runs."""

import pytest

from tests.testing.inner import ROOT, Inner
from tests.testing.zoo_by_mark import NAMES, SOME


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    # no traceback is read here, and all of them take long to draw; torch's warnings are no errors
    options = ("-p", "no:timeout", "--tb=line", "-W", "default")
    return Inner(tmp_path_factory.mktemp("zoo"), *options, ROOT / "tests/testing/zoo_by_mark.py")


@pytest.mark.parametrize("row", SOME, ids=NAMES)
def test_the_verdict_is_that_of_the_notebook(zoo, row):
    n, program, error, sentence, _ = row
    outcome = zoo.outcomes[f"test_program[{program.__name__}-{n}]"]
    assert outcome.how == "failed"
    if sentence != "Variables are kept":  # no test sees those of another
        assert sentence.replace("LAST", str(n - 1)) in outcome.line + outcome.text
    if error != "RankError":  # whose place that of the rank's own exception takes
        assert error in outcome.line + outcome.text
