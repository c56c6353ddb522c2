"""How many ranks and hosts tokens reach, by formula and by chance."""

import random

import pytest

from distlab_predict.drawn import Drawn

TOKENS = 20_000


def reached_by_chance(drawn):
    """The share of tokens that reach the first part, of many tokens."""
    generator = random.Random(0)
    of_group = drawn.options // drawn.groups
    hits = 0
    for _ in range(TOKENS):
        groups = generator.sample(range(drawn.groups), drawn.groups_chosen)
        left = [group * of_group + one for group in groups for one in range(of_group)]
        hits += min(generator.sample(left, drawn.chosen)) < drawn.each
    return hits / TOKENS


@pytest.mark.parametrize(
    "drawn",
    [
        Drawn(8, 2),
        Drawn(128, 8, each=8),
        Drawn(128, 8, each=64),
        Drawn(16, 16, each=4),
        Drawn(256, 8, 8, 4, each=4),
        Drawn(256, 8, 8, 4, each=32),
        Drawn(256, 8, 8, 4, each=128),
        Drawn(256, 8, 8, 4, each=256),
    ],
)
def test_as_many_tokens_reach_a_part_as_by_chance(drawn):
    assert drawn.reached() == pytest.approx(reached_by_chance(drawn), abs=0.015)


def test_a_token_of_deepseek_v3_reaches_at_most_as_many_hosts_as_groups():
    hosts = Drawn(256, 8, 8, 4, each=32)
    assert 3.5 < hosts.reached() * hosts.parts < 4
    assert hosts.reached() < Drawn(256, 8, each=32).reached()


def test_one_expert_is_reached_by_its_share_of_tokens():
    assert Drawn(256, 8, 8, 4).reached() == pytest.approx(8 / 256)


def test_parts_that_cut_groups_are_taken_as_if_there_were_none():
    assert Drawn(12, 2, 3, 1, each=6).reached() == Drawn(12, 2, each=6).reached()
