"""A broken program in a marked test fails with the report, and the next test runs."""

import pytest

from tests.cluster.notebook.test_zoo import ROWS
from tests.testing.inner import ROOT, Inner


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    # no traceback is read here, and a hundred take long to draw; what torch warns of is no error
    options = ("-p", "no:timeout", "--tb=line", "-n", "2", "-W", "default")
    return Inner(tmp_path_factory.mktemp("zoo"), *options, ROOT / "tests/testing/zoo_by_mark.py")


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[1].__name__}-{row[0]}" for row in ROWS])
def test_the_verdict_is_that_of_the_notebook(zoo, row):
    n, program, error, sentence, _ = row
    outcome = zoo.outcomes[f"test_program[{program.__name__}-{n}]"]
    assert outcome.how == "failed"
    if sentence != "Variables are kept":  # no test sees those of another
        assert sentence.replace("LAST", str(n - 1)) in outcome.line + outcome.text
    if error != "RankError":  # whose place that of the rank's own exception takes
        assert error in outcome.line + outcome.text
