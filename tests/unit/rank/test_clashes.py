"""Which names of a function from the notebook have another value on a rank."""

import sys
from types import FunctionType, ModuleType

import pytest
import torch

from distlab.rank import clashes

NAN = float("nan")


def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(2, 2)


def named(text):
    """A function of a cell."""
    cell: dict[str, object] = {}
    exec(text, cell)
    return cell["fn"]


@pytest.fixture
def names_found(monkeypatch):
    """The names that a function brings with these values, and that a rank has with others."""

    def found(brought, own, pushed=()):
        rank = ModuleType("__main__")
        vars(rank).update(own)
        monkeypatch.setattr(clashes, "_PUSHED", {name: id(own[name]) for name in pushed})
        monkeypatch.setitem(sys.modules, "__main__", rank)
        fn = FunctionType((lambda: 0).__code__, {"__name__": "__main__", **brought})
        return [name for name, _ in clashes.clashes_of(fn)]

    return found


@pytest.mark.parametrize(
    ("brought", "own"),
    [
        (1, 2),
        (1, None),
        ("a", "b"),
        ([1, 2], [1, 3]),
        ([1], [1, 1]),
        ({"lr": 0.1}, {"lr": 0.2}),
        ({"lr": 0.1}, {"rate": 0.1}),
        (torch.ones(2), torch.zeros(2)),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.int64)),
        (torch.ones(2), [1, 1]),
        (network(0), network(1)),
        (network(0), None),
        (network(0), torch.ones(2)),
        (named("def fn(): return 1"), named("def fn(): return 2")),
        (named("def fn(): return all_reduce"), named("def fn(): return all_gather")),
    ],
)
def test_another_value(names_found, brought, own):
    assert names_found({"x": brought}, {"x": own}) == ["x"]


@pytest.mark.parametrize(
    ("brought", "own"),
    [
        (1, 1.0),
        (NAN, NAN),
        ([1, (2, "a")], [1, (2, "a")]),
        ({"lr": torch.ones(2)}, {"lr": torch.ones(2)}),
        (torch.tensor([NAN, 1]), torch.tensor([NAN, 1])),
        (network(0), network(0)),
        (torch, torch.nn),
        (dict, list),
        (object(), object()),
        (
            named("def fn(): return [1 for _ in 'ab']"),
            named("\n\ndef fn(): return [1 for _ in 'ab']"),
        ),
    ],
)
def test_the_same_value_or_one_that_cannot_be_compared(names_found, brought, own):
    """Modules, classes and unknown objects are never said to differ."""
    assert names_found({"x": brought}, {"x": own}) == []


def test_names_that_only_one_side_has_and_what_was_pushed(names_found):
    own = {"pushed": 2, "only_here": 3, "_hidden": 4}
    brought = {"pushed": 1, "only_there": 1, "_hidden": 1}
    assert names_found(brought, own, pushed=["pushed"]) == []
    assert names_found({"pushed": 1}, own) == ["pushed"]


def test_a_function_of_a_module_has_its_modules_names(names_found):
    assert names_found({"x": 1, "__name__": "helpers"}, {"x": 2}) == []
