"""Objects taken apart and put together again, in one process; tests/cluster/client/test_run.py sends tensors around."""

import sys
import types

import torch

from distlab.wire import payload


def test_a_large_tensor_is_not_copied_into_the_header():
    """The memory of a tensor travels beside the header, and shares it with the tensor."""
    tensor = torch.zeros(1_000_000)
    header, (buffer,) = payload.dumps([tensor])
    assert len(header) < 1000
    assert buffer.nbytes == 4_000_000
    tensor[0] = 1
    assert bytes(buffer[:4]) == bytes(torch.tensor([1.0]).numpy())


def test_a_view_brings_only_its_own_elements():
    """One row of a large matrix does not bring the matrix along."""
    _, (buffer,) = payload.dumps(torch.zeros(1000, 1000)[5])
    assert buffer.nbytes == 4000


def test_small_and_many_tensors_travel_in_the_header():
    """A tensor of a few bytes is no part of its own, and there is a limit to the parts, which ipyparallel sets."""
    assert payload.dumps(torch.ones(4))[1] == []
    many = [torch.full((1000,), float(i)) for i in range(200)]
    header, buffers = payload.dumps(many)
    assert len(buffers) == payload.MOST_BUFFERS
    back = payload.loads(header, [bytes(buffer) for buffer in buffers])
    assert all(torch.equal(one, other) for one, other in zip(many, back, strict=True))
    back[-1].zero_()
    assert many[-1][0] == 199


def test_a_module_of_the_learner_travels_by_value(tmp_path):
    """A function from a file beside the notebook works where that file cannot be imported."""
    path = tmp_path / "beside_the_notebook.py"
    path.write_text("FACTOR = 6\ndef helper(x): return FACTOR * x\ndef fn(rank, world_size): return helper(7)\n")
    module = types.ModuleType("beside_the_notebook")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        header, buffers = payload.dumps((module.fn, (), {}))
    finally:
        del sys.modules[module.__name__]
    fn, _, _ = payload.loads(header, buffers)
    assert fn(0, 1) == 42


def test_an_attribute_named_like_a_module_of_torch_is_no_obstacle():
    """A function that uses torch and something's .classes, .config or .ops travels; those modules go by name."""
    namespace = {"torch": torch, "__name__": "__main__"}
    exec("def fn(x):\n    return torch.tensor([x.classes, x.distributed.config, x.ops, x.backends])\n", namespace)
    here = types.SimpleNamespace(classes=10, config=2, ops=3, backends=4)
    here.distributed = here
    fn, modules = payload.loads(*payload.dumps((namespace["fn"], [torch.classes, torch.ops])))
    assert fn(here).tolist() == [10, 2, 3, 4]
    assert modules == [torch.classes, torch.ops]
