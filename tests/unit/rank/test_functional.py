"""What a rank notes of functional collectives, which C++ makes and waits for."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses import FakeTensorMode

from distlab.rank.log import LOG
from tests.unit.rank.test_log import newest


def ones(*shape):
    return torch.ones(shape)


@pytest.mark.parametrize(
    ("call", "op", "fields"),
    [
        (lambda g: functional.all_reduce(ones(2), "max", g), "all_reduce", {"reduce_op": "MAX"}),
        (
            lambda g: functional.all_gather_tensor(ones(2, 3), 0, g),
            "all_gather_",
            {"tensors": (("float32", (2, 3)),)},
        ),
        (
            lambda g: functional.all_to_all_single(ones(4, 2), [4], [4], g),
            "all_to_all_single",
            {"sends": (8,)},
        ),
        (lambda g: functional.broadcast(ones(2), 0, g), "broadcast", {"root": 0}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_a_functional_collective_is_noted(alone, call, op, fields):
    """With its name, arguments and line; it is over when its result was waited for."""
    result = call(dist.group.WORLD)
    record = newest()
    assert record.op.startswith(op)
    assert {name: getattr(record, name) for name in fields} == fields
    assert (record.collective != "", record.members, record.sequence) == (True, (0,), 1)
    assert record.site[0] == "test_functional.py"
    note = LOG.collectives[dist.group.WORLD.group_name][-1]
    assert not note.done
    result.wait()
    assert note.done


@pytest.mark.parametrize(
    "call",
    [
        lambda operator, name: operator(ones(2), "max", group_name=name),
        lambda operator, name: operator(group_name=name, reduce_op="max", input=ones(2)),
    ],
)
def test_an_operator_may_be_called_with_keywords(alone, call):
    """torch itself gives them by position."""
    result = call(torch.ops._c10d_functional.all_reduce, dist.group.WORLD.group_name)
    assert (newest().op, newest().reduce_op) == ("all_reduce", "MAX")
    functional.wait_tensor(result)


def test_what_torch_only_traces_is_not_noted(alone):
    """Tensors without numbers are not sent."""
    with FakeTensorMode():
        functional.all_reduce(ones(2), "sum", dist.group.WORLD)
    assert not any(LOG.collectives.values())


def exchange(tensor, sizes, group):
    """Sizes that are data, as those of a mixture of experts."""
    sizes = sizes.tolist()
    for size in sizes:
        torch._check(size >= 0)
    return functional.all_to_all_single(tensor, sizes, sizes, group)


def test_a_compiled_program_keeps_its_sizes_open(alone, monkeypatch):
    """A note makes no size a number: the program is compiled once."""
    monkeypatch.setattr(torch._dynamo.config, "capture_scalar_outputs", True)
    compiled = torch.compile(exchange, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (2, 3):
        result = compiled(ones(size), torch.tensor([size]), dist.group.WORLD)
        assert functional.wait_tensor(result).tolist() == [1.0] * size
