"""Each broken program of the zoo as a marked test, for test_zoo_by_mark.py."""

import pytest

from tests.cluster.notebook.test_zoo import ROWS

TESTS = [
    pytest.param(program, marks=pytest.mark.ranks(n, **options), id=f"{program.__name__}-{n}")
    for n, program, _, _, options in ROWS
]


@pytest.mark.parametrize("program", TESTS)
def test_program(program, rank, world_size):
    program(rank, world_size)
