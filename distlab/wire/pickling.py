"""Objects on their way between notebook and ranks: a header, and the memory of large tensors.

Runs on the notebook's kernel, called by cluster.py, magics.py, questions.py and check.py; on every
rank, called by entry.py; and in the processes of predictions and of marking.
Functions and classes that were written in a notebook travel by value (cloudpickle). The memory of a
dense CPU tensor travels out of band (pickle protocol 5), so a large tensor is not copied into a
pickle first. Small tensors, and all after the first MOST_BUFFERS, are copied into the header.
"""

import importlib
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from types import ModuleType
from typing import Any

import cloudpickle

from distlab.errors import SerializationError
from distlab.wire.messages import Failure
from distlab.wire.source import is_learners

# ipyparallel pickles a list of 64 parts or more as a whole, and a list that holds buffers cannot be
# pickled so
MOST_BUFFERS = 32
PLAIN_MODULES = (
    "distlab.wire.messages",
    "distlab.wire.pickling",
    "distlab.wire.rendezvous",
    "distlab.wire.source",
)
_READS_PLAIN_ONLY: list[bool] = []  # holds something after `read_plain_only`
LEAST_BYTES = 1024  # copying less is faster than sending it as a part of its own
STAY = (
    "Open files, locks, sockets and generators stay where they are: make them inside the function."
)


@dataclass(frozen=True)
class Reply:
    """What a rank returns for a call of the notebook's.

    The buffers of its value travel beside it, in one list.

    Attributes:
        header: of the value, for pickling.loads.
        failure: what the call raised; None when it returned.
        unsendable: why the value cannot travel, a sentence; "" if it can.
        clashes: names that the called function took from the notebook although they have another
            value on the rank, each with a mark of that value.
    """

    header: bytes = b""
    failure: Failure | None = None
    unsendable: str = ""
    clashes: tuple[tuple[str, int], ...] = ()


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """Take `value` apart into a header and the memory of its tensors and arrays.

    If `value` is a function of a module of the learner's, this process pickles that module by value
    from now on, see `pickle_module_by_value`.

    Runs on: anywhere.

    Returns:
        The header, and the buffers that `loads` needs in the same order. The buffers share memory
        with `value`.

    Raises:
        Exception: whatever the value's own pickling raises.
    """
    buffers: list[memoryview] = []

    def in_header(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < LEAST_BYTES or len(buffers) >= MOST_BUFFERS:
            return True
        buffers.append(memory)
        return False

    stream = io.BytesIO()
    pickle_module_by_value(_function_in(value))
    _Pickler(stream, protocol=5, buffer_callback=in_header).dump(value)
    return stream.getvalue(), buffers


def _function_in(value: Any) -> Any:
    """The function in a value that is (function, arguments...), or the value itself."""
    if isinstance(value, tuple) and value:
        return value[0]
    return value


def loads(header: bytes, buffers: Sequence[Any]) -> Any:
    """Put together what `dumps` took apart; tensors and arrays are writable and own their memory.

    Runs on: anywhere.
    """
    memory = [bytearray(buffer) for buffer in buffers]
    if _READS_PLAIN_ONLY:
        return _PlainUnpickler(io.BytesIO(header), buffers=memory).load()
    return pickle.loads(header, buffers=memory)


def read_plain_only() -> None:
    """From now on, this process reads only plain data and distlab's own messages from ranks.

    Called by a marking process, on whose ranks a student's code runs.
    """
    from distlab.compat.ipyparallel import read_replies_with

    _READS_PLAIN_ONLY.append(True)
    read_replies_with(_plain_reply)


def _plain_reply(data: bytes) -> Any:
    """A reply that ipyparallel has received; one that holds anything else says so in words."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # in ipyparallel's loop, which would not go on
        return [Reply(unsendable=f"A rank has sent what it may not send: {error}.")]


class _PlainUnpickler(pickle.Unpickler):
    """Knows no functions, and no classes but the dataclasses in which a rank's reply travels."""

    def find_class(self, module: str, name: str) -> Any:
        if module in PLAIN_MODULES and "." not in name:
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type) and is_dataclass(found) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"a rank may not send {module}.{name}")


def pack(value: Any, what: str) -> tuple[bytes, list[memoryview]]:
    """Like `dumps`, for the ranks.

    Runs on: the notebook's kernel.

    Args:
        value: what is sent.
        what: its name, for the error.

    Raises:
        SerializationError: it cannot be sent; the message says what to do.
    """
    try:
        return dumps(value)
    except Exception as error:
        why = f"{what} cannot be sent to the ranks ({type(error).__name__}: {error})."
        advice = _advice_for(_function_in(value))
        raise SerializationError(f"{why} {advice}") from error


def _advice_for(function: Any) -> str:
    """What to do about a function that cannot be sent."""
    compiled = _compiled_in(function)
    if compiled:
        rule = "call torch.compile inside the function that runs on the ranks"
        return f"{compiled} is compiled: {rule}."
    name = _unsendable_in(function)
    if name:
        return f"It uses {name}, which is the notebook's. {STAY}"
    return STAY


def _compiled_in(function: Any) -> str:
    """The name of a function that torch has compiled; "" for none.

    It is this function, or one that it calls by a name.
    """
    if "torch" not in sys.modules:
        return ""
    from distlab.compat.torch import is_compiled

    if is_compiled(function):
        return str(function.__name__)
    for name, value in _variables_of(function).items():
        if is_compiled(value):
            return name
    return ""


def _unsendable_in(function: Any) -> str:
    """The name of a variable that a function uses and that cannot be sent; "" for none."""
    for name, value in _variables_of(function).items():
        try:
            dumps(value)
        except Exception:  # whatever the value's own pickling raises
            return name
    return ""


def _variables_of(function: Any) -> dict[str, Any]:
    """The variables from around a function that it uses, by name; none if it is no function."""
    if not inspect.isfunction(function):
        return {}
    try:
        variables = inspect.getclosurevars(function)
    except ValueError:  # a variable of the function around it has no value yet
        return {}
    return {**variables.globals, **variables.nonlocals}


def unpack(replies: list[Any]) -> list[Any]:
    """The values in the ranks' replies.

    Runs on: the notebook's kernel.

    Args:
        replies: one [Reply, *buffers] of each rank.

    Raises:
        SerializationError: a value cannot travel.
    """
    for reply, *_ in replies:
        if reply.unsendable:
            raise SerializationError(reply.unsendable)
    return [loads(reply.header, buffers) for reply, *buffers in replies]


def pickle_module_by_value(function: Any) -> None:
    """From now on, pickle the functions of this one's module with their code.

    That is done for modules beside the notebook: the rank may not find such a module, or may have
    imported it before its last edit.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "__main__")
    if module is None or module.__name__ == "__main__":
        return
    if is_learners(getattr(module, "__file__", None)):
        cloudpickle.register_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle, with the memory of plain tensors out of band.

    A module with a class of its own, like torch.classes and torch.backends, goes by its name like
    any other module. cloudpickle would send it along with a function that uses torch and an
    attribute of that name, such as .classes.
    """

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and _is_plain(obj, torch):
            return _reduce_tensor(obj, torch)
        if isinstance(obj, ModuleType) and _goes_by_name(obj):
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def _goes_by_name(module: ModuleType) -> bool:
    """Whether a module has a class of its own, and can be imported by its name."""
    return type(module) is not ModuleType and sys.modules.get(module.__name__) is module


def _is_plain(tensor: Any, torch: Any) -> bool:
    """Whether a tensor is no more than a type, a shape and its bytes in memory."""
    from distlab.compat.torch import has_hooks  # only where torch is imported already

    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.numel() == 0:
        return False
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return False
    return not has_hooks(tensor)


def _reduce_tensor(tensor: Any, torch: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function that makes the tensor again, and its arguments."""
    memory = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _rebuild_tensor, (
        pickle.PickleBuffer(memory),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.requires_grad,
    )


def _rebuild_tensor(memory: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:
    """The tensor that `_reduce_tensor` took apart, in the memory that arrived."""
    import torch

    return torch.frombuffer(memory, dtype=dtype).reshape(shape).requires_grad_(requires_grad)
