"""Ranks that are to join a group, when one of them has ended; with an ipyparallel on paper."""

from types import SimpleNamespace

import ipyparallel
import pytest
from ipyparallel.util import ReverseDict

from distlab.compat.ipyparallel import NoSuchEngineError, engines_exist
from distlab.errors import ClusterError
from distlab.notebook.generation import join_all
from distlab.wire import messages
from tests.plans import plan_of
from tests.refused import raised


def raise_that_none_is_there():
    raise ipyparallel.NoEnginesRegistered("Can't build targets without any engines")


@pytest.mark.parametrize(
    "find", [lambda: ReverseDict({0: "engine"})[1], raise_that_none_is_there], ids=["one", "all"]
)
def test_ipyparallel_finds_no_engine_that_has_ended(find):
    with pytest.raises(NoSuchEngineError), engines_exist():
        find()


class Client:
    """ipyparallel's client, which knows engine 0 alone."""

    ids = (0,)

    def direct_view(self, targets):
        for rank in targets:
            ReverseDict({0: "engine"})[rank]
        return SimpleNamespace(apply_async=lambda join: SimpleNamespace(_children=["a future"]))


def test_a_rank_that_ends_before_it_is_asked_to_join_is_named():
    """Those that were asked before wait for it: they are freed."""
    asked = []
    processes = SimpleNamespace(
        client=Client(),
        channel=SimpleNamespace(ask=lambda *question: asked.append(question)),
        servers=SimpleNamespace(pids={}),
    )
    joins = dict.fromkeys((0, 1), lambda: None)
    error = raised(ClusterError, join_all, plan_of(n=2), processes, joins, is_first=False)
    assert "rank 1 died" in str(error)
    assert asked == [({0: "a future"}, 0, messages.FREE)]
