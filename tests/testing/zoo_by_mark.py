"""Broken programs of the zoo as marked tests, for test_zoo_by_mark.py.

Some of each kind, because tests/cluster/notebook/test_zoo.py runs all of them.
"""

from collections import defaultdict

import pytest

from tests.cluster.notebook.test_zoo import ROWS

EACH = 3  # of a kind: those of one file that end with the same error, with and without options
# imported once for all ranks: after many programs the next test has new ones
PRELOAD = ["distlab.testing.on_rank", "torch.distributed.fsdp", "torch.distributed.pipelining"]

_kinds = defaultdict(list)
for row in ROWS:
    _, program, error, _, options = row
    _kinds[program.__module__, error, tuple(options)].append(row)
SOME = [row for rows in _kinds.values() for row in rows[:EACH]]
NAMES = [f"{program.__name__}-{n}" for n, program, *_ in SOME]
# the same cluster serves one test after the other with as many ranks
TESTS = [
    pytest.param(program, marks=pytest.mark.ranks(n, preload=PRELOAD, **options), id=name)
    for (n, program, _, _, options), name in sorted(
        zip(SOME, NAMES, strict=True), key=lambda test: test[0][0]
    )
]


@pytest.mark.parametrize("program", TESTS)
def test_program(program, rank, world_size):
    program(rank, world_size)
