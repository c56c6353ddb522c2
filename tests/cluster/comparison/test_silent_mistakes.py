"""Every program of the zoo of silent mistakes is named by its cause, with its line."""

import importlib
import pathlib

import pytest

import distlab
from tests.cluster.comparison.zoo_of_silent_mistakes import MISTAKES, SHOWN

for path in sorted(pathlib.Path(__file__).parent.glob("zoo_of_silent_mistakes_*.py")):
    importlib.import_module(f"tests.cluster.comparison.{path.stem}")


def test_the_zoo_is_large():
    """At least 50 programs, each with a name of its own."""
    assert len({mistake.train.__name__ for mistake in MISTAKES}) == len(MISTAKES) >= 50


def in_order(words, sentence):
    """Whether the sentence has the words, one after another."""
    place = 0
    for word in words:
        found = sentence.find(word, place)
        if found < 0:
            return False
        place = found + len(word)
    return True


@pytest.mark.parametrize("sized", [4], indirect=True)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.train.__name__)
def test_a_silent_mistake_is_named(sized, mistake):
    """The first finding has its cause, words and factor, and lines: those that are marked."""
    comparison = distlab.compare(mistake.train, worlds=mistake.worlds)
    assert not comparison.same, repr(comparison)
    first = comparison.findings[0]
    assert first.cause is mistake.cause, repr(comparison)
    assert in_order(mistake.words, first.sentence), repr(comparison)
    if mistake.factor is not None:
        assert first.factor == pytest.approx(mistake.factor, rel=1e-3), repr(comparison)
    assert first.lines or first.hinders, repr(comparison)
    shown = {line.text for line in first.lines if line.text.endswith(SHOWN)}
    assert shown == mistake.marked_lines(), repr(comparison)
