"""The search of `predict.plan`, on grids whose costs are made up."""

import itertools
import random

import pytest

from distlab_predict.search import LEAST_PAIRS, Need, Search

MARGIN = 0.05
LIMIT = 80.0


def costs(seed):
    """Costs over five axes: tensor, pipeline, recompute, batch, and something that interacts."""
    rng = random.Random(seed)
    sends, gathers = rng.uniform(0.01, 0.15), rng.uniform(0.1, 0.6)
    weights, values, again = rng.uniform(100, 600), rng.uniform(0.3, 2), rng.uniform(0.15, 0.4)

    def need(place):
        tensor, pipeline, recompute, batch, other = place
        ranks, stages, sequences = 2**tensor, 2**pipeline, 2**batch
        computing = (1 + again * (0, 1 / 3, 1)[recompute]) * (1 + 0.02 * ranks)
        exposed = max(0, gathers / sequences - 0.3 * computing) / ranks + sends * ranks
        bubble = (stages - 1) / (4 * sequences + stages - 1)
        cost = (computing + exposed) / (1 - bubble) * (1 + 0.01 * rng.random())
        cost *= 1 - (0, 0.5, 0)[other] * bubble + (0, 0.02, 0.04)[other]
        kept = values * sequences * (40, 15, 4)[recompute] / ranks
        size = weights / ranks / stages + kept * (1 + 0.2 * stages) * (1, 1.3, 0.9)[other]
        return Need(cost, size)

    places = list(itertools.product(range(4), *[range(3)] * 4))
    return {place: need(place) for place in places}


def searched(needs, limit=LIMIT):
    """A search that has ended, and how many places it has predicted."""
    search = Search(needs, limit, MARGIN)
    predicted = []
    while batch := search.next_places(4):
        for place in batch:
            search.note(place, needs[place])
            predicted.append(place)
    assert len(predicted) == len({*predicted})
    assert {*predicted, *search.left_out} == {*needs}
    return search, predicted


@pytest.mark.parametrize("seed", range(8))
def test_the_best_place_is_found_with_a_third_of_the_predictions(seed):
    needs = costs(seed)
    search, predicted = searched(needs)
    assert search.best_cost == min(need.cost for need in needs.values() if need.num_bytes <= LIMIT)
    assert len(predicted) < len(needs) / 3


def test_what_is_left_out_needs_what_the_rule_says():
    """Where axes do not interact, the outlook on a place is what it needs."""
    needs = {}
    for place in itertools.product(range(4), range(4), range(4)):
        first, second, third = place
        needs[place] = Need(1.5**first * 1.2**second, 10 * 2.0**third)
    search, predicted = searched(needs, limit=50.0)
    assert search.left_out
    for place, outlook in search.left_out.items():
        assert outlook.cost == pytest.approx(needs[place].cost)
        assert outlook.num_bytes == pytest.approx(needs[place].num_bytes)
    too_large = [place for place in predicted if search.misses(needs[place])]
    assert 0 < len(too_large) < 16  # of those with the largest value of the third axis


def test_a_rule_that_is_wrong_is_found_out():
    """A step that was always slower is quicker at one place, near to being tried."""
    needs = {}
    for place in itertools.product(range(5), range(5)):
        first, second = place
        needs[place] = Need(1.07**first * 1.01**second, 1.0)
    needs[1, 4] = Need(0.5, 1.0)
    search, _ = searched(needs, limit=None)
    assert search.best_cost == 0.5


def test_refused_places_teach_nothing():
    places = list(itertools.product(range(3), range(3)))
    search = Search(places, LIMIT, MARGIN)
    for place in places:
        search.note(place, None)
    assert search.next_places(4) == []
    assert search.best_cost is None
    assert search.left_out == {}


def test_the_rule_needs_pairs():
    """Below that, nothing is left out."""
    needs = {(first, second): Need(1 + first, 1.0) for first in range(9) for second in range(2)}
    assert LEAST_PAIRS > 2
    _, predicted = searched(needs)
    assert len(predicted) == len(needs)
