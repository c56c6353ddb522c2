"""When a call in the notebook's process would wait for processes that nobody has started."""

import importlib
import os
import sys
from datetime import timedelta

import pytest

from distlab.errors import ClusterError
from distlab.notebook import one_process
from tests.refused import raised

HERE = os.getpid()


def joins(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None):
    """In the place of torch's function, with its parameters."""


def attempt(owner=HERE, **given):
    return one_process._init_process_group(owner, joins, **given)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No launcher, and no other process of this one's."""
    for name in ("WORLD_SIZE", one_process.LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(one_process, "_has_children", lambda: False)


REFUSED = [
    {"world_size": 2},
    {"world_size": 2, "backend": "cpu:gloo,cuda:nccl"},
    {"world_size": 2, "store": object(), "rank": 0},
    {"init_method": "tcp://127.0.0.1:1?world_size=2&rank=0"},
]
RIGHT = [
    {},
    {"world_size": 1},
    {"backend": "fake", "world_size": 2},
    {"world_size": 2, "timeout": timedelta(seconds=1)},  # who says for how long expects somebody
    {"world_size": 2, "owner": HERE + 1},  # a process that a cell has forked
    {"world_size": "many"},
    {"store": object()},
]


@pytest.mark.parametrize("given", REFUSED)
def test_a_wait_for_nobody_is_refused(given):
    """In one process that has started no other."""
    words = str(raised(ClusterError, attempt, **given))
    assert words.startswith(
        "This kernel is one process, and "
        "init_process_group(world_size=2) would wait here for 1 more."
    )


@pytest.mark.parametrize("given", RIGHT)
def test_a_wait_that_may_end_is_none(given):
    """Torch decides about it."""
    attempt(**given)


def test_the_environment_may_say_how_many(monkeypatch):
    """As env:// reads it; under torchrun the others are there."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    raised(ClusterError, attempt)
    raised(ClusterError, attempt, init_method="env://")
    attempt(init_method="tcp://127.0.0.1:1", world_size=1)
    attempt(store=object())
    monkeypatch.setenv(one_process.LAUNCHED, "a job")
    attempt()


def test_a_module_is_wrapped_when_it_is_imported(monkeypatch, tmp_path):
    """And works as before; other modules are found by others."""
    (tmp_path / "joins_later.py").write_text("def join(x):\n    return x\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    join = one_process.Wrapped("join", lambda original, x: ("seen", original(x)), ())
    monkeypatch.setattr(one_process, "WRAPPED_BY_MODULE", {"joins_later": join})
    monkeypatch.setattr(sys, "meta_path", [one_process._WhenImported(), *sys.meta_path])
    module = importlib.import_module("joins_later")
    del sys.modules["joins_later"]
    assert module.join(1) == ("seen", 1)
    raised(ModuleNotFoundError, importlib.import_module, "no_such_module")
