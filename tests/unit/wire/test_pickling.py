"""Objects taken apart and put together again, in one process; test_run.py sends tensors around."""

import importlib
import inspect
import io
import pickle
import threading
import types

import pytest
import torch

from distlab.errors import SerializationError
from distlab.wire import pickling
from tests.refused import raised


def test_a_large_tensor_is_not_copied_into_the_header():
    """The memory of a tensor travels beside the header, and shares it with the tensor."""
    tensor = torch.zeros(1_000_000)
    header, (buffer,) = pickling.dumps([tensor])
    assert len(header) < 1000
    assert buffer.nbytes == 4_000_000
    tensor[0] = 1
    assert bytes(buffer[:4]) == bytes(torch.tensor([1.0]).numpy())


def test_a_view_brings_only_its_own_elements():
    """One row of a large matrix does not bring the matrix along."""
    _, (buffer,) = pickling.dumps(torch.zeros(1000, 1000)[5])
    assert buffer.nbytes == 4000


def test_an_attribute_named_like_a_module_of_torch_is_no_obstacle():
    """A function that uses something's .classes, .config or .ops travels."""
    namespace = {"torch": torch, "__name__": "__main__"}
    exec(
        (
            "def fn(x):\n"
            "    return torch.tensor([x.classes, "
            "x.distributed.config, x.ops, x.backends])\n"
        ),
        namespace,
    )
    here = types.SimpleNamespace(classes=10, config=2, ops=3, backends=4)
    here.distributed = here
    fn, modules = pickling.loads(*pickling.dumps((namespace["fn"], [torch.classes, torch.ops])))
    assert fn(here).tolist() == [10, 2, 3, 4]
    assert modules == [torch.classes, torch.ops]


def test_a_compiled_function_is_named():
    """Itself, or as a variable of another function; of any other nothing is said."""

    def doubled(x):
        return 2 * x

    def uses_it(rank, n):
        return fast(rank)

    fast = torch.compile(doubled)
    namespace = {"fast": fast, "__name__": "__main__"}
    exec("def uses_a_global(rank, n):\n    return fast(rank)\n", namespace)
    advice = "doubled is compiled: call torch.compile inside the function that runs on the ranks."
    assert str(raised(SerializationError, pickling.pack, (fast, (), {}), "It")).endswith(
        f" {advice}"
    )
    advice = advice.replace("doubled", "fast")
    for function in (uses_it, namespace["uses_a_global"]):
        assert str(raised(SerializationError, pickling.pack, (function, (), {}), "It")).endswith(
            f" {advice}"
        )
    lock = threading.Lock()
    failed = raised(SerializationError, pickling.pack, (lambda rank, n: lock, (), {}), "It")
    assert "compiled" not in str(failed)


def test_a_process_that_reads_plain_data_only_reads_every_class_it_allows():
    """Not one of a module that nobody has imported; a function or another class never."""
    for name in pickling.PLAIN_MODULES:
        module = importlib.import_module(name)
        for kind in vars(module).values():
            if (
                inspect.isclass(kind)
                and kind.__module__ == name
                and not kind.__name__.startswith("_")
            ):
                refused = issubclass(kind, Exception)
                assert refused or pickling._PlainUnpickler(io.BytesIO()).find_class(
                    name, kind.__name__
                )
    for name in (*pickling.PLAIN_MODULES, "os", "distlab.wire.nowhere"):
        with pytest.raises(pickle.UnpicklingError, match="a rank may not send"):
            pickling._PlainUnpickler(io.BytesIO()).find_class(name, "system")
