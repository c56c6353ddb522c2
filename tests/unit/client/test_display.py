"""Displays of ranks side by side, from a stand-in for ipyparallel's AsyncResult; test_px.py has the rest."""

from types import SimpleNamespace

from distlab.client import display


def result(displays):
    """Of ranks that displayed these texts."""
    written = {"stdout": "", "stderr": "", "execute_result": None}
    of_rank = [[{"data": {"text/plain": text}} for text in texts] for texts in displays]
    return SimpleNamespace(_metadata=[{**written, "outputs": outputs} for outputs in of_rank])


def test_a_rank_that_displays_the_same_twice_is_not_folded_with_itself():
    """Two equal displays of one rank stay two; across ranks they fold pairwise."""
    items = display.collect(result(["xx", "xx"]), [0, 1])
    assert [i.ranks for i in items] == [(0, 1), (0, 1)]
