"""Tables and what stands in their cells."""

import copy
import pickle

import pytest

from distlab.tables import Hyperlink


@pytest.mark.parametrize("again", [copy.copy, lambda link: pickle.loads(pickle.dumps(link))])
def test_a_link_can_be_copied_and_sent(again):
    """A table with links may be a result that somebody keeps in a file."""
    link = again(Hyperlink("lab 3", "03.ipynb"))
    assert (link, link.target) == ("lab 3", "03.ipynb")
