"""The private parts of torch that distlab uses, one function or name for each.

Tried with torch 2.13 to 2.15. Runs on every rank, and in a notebook's kernel that has imported
torch already.
"""

import contextlib
import importlib
import inspect
import json
import logging
import operator
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._guards import detect_fake_mode
from torch.distributed import distributed_c10d as c10d
from torch.utils.flop_counter import flop_registry

# Modules by whose names a wait is recognised: collectives that C++ makes, as for DTensor; and
# DTensor's own functions.
FUNCTIONAL_MODULE = "torch.distributed._functional_collectives"
DTENSOR_MODULE = "torch.distributed.tensor._api"
C10D_MODULE = c10d.__name__
DDP_MODULE = "torch.nn.parallel.distributed"
UNUSED_TAG = 2**31 - 1  # of messages
# Functions that begin collectives in C++, beside the backward pass, which runs DDP's hooks. The
# Reducer is DDP's, too.
BEGINNING_IN_CPP = (
    (dist.Reducer, "_rebuild_buckets"),
    (dist.Reducer, "_run_comm_hook"),
    (dist.Reducer, "_push_all_rebuilt_params"),
    (dist, "_broadcast_coalesced"),
    (dist, "_verify_params_across_processes"),
)
# Where a backward pass keeps the caller's context variables for its threads.
KEEPS_CONTEXT = (torch._C, "_stash_obj_in_tls")
CONTEXT = "context"
# What gives a Work to DDP's Reducer, which waits for it in C++.
GIVES_TO_REDUCER = (dist.Reducer, "_set_forward_pass_work_handle")
# The method of a Work that says where a message came from.
SENDER = "_source_rank"
# One that the class of Works alone has, for TorchScript.
OF_CLASS = "unbox"
# Methods of ProcessGroup: the private names of all_gather_single and reduce_scatter_single.
ALL_GATHER_BASE = "_allgather_base"
REDUCE_SCATTER_BASE = "_reduce_scatter_base"
# The operators that make functional collectives, and the method of ProcessGroup that does the same.
_OF_ONE_TENSOR = {
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "all_to_all_single": "all_to_all_single",
    "broadcast": "broadcast",
}
FUNCTIONAL_METHODS = {
    **_OF_ONE_TENSOR,
    **{f"{name}_coalesced": method for name, method in _OF_ONE_TENSOR.items()},
}
# modules with functions whose default argument is the group that was the default one when torch
# imported them
BOUND_TO_GROUP = ("torch.distributed.nn.functional", "torch.distributed.fsdp.sharded_grad_scaler")


# --- groups ---

# of every group that this process is in now, by group; not group.group_name, which a group in
# Python may not have
GROUP_NAMES: Mapping[Any, str] = c10d._world.pg_names


def leave_all_groups() -> None:
    """Destroy every group, whatever a program has put in the place of the default group."""
    if GROUP_NAMES:
        dist.group.WORLD = next(iter(GROUP_NAMES))  # the first one is the default one
        dist.destroy_process_group()


def unbind_default_arguments() -> None:
    """Have functions of torch with a default group take the one that there is when they are called.

    Otherwise it would be one that is gone once the group was rebuilt. Private: the modules.
    """
    for name in BOUND_TO_GROUP:
        module = sys.modules.get(name)
        for value in list(vars(module).values()) if module else ():
            function = vars(value).get("__init__") if isinstance(value, type) else value
            if inspect.isfunction(function) and function.__defaults__:
                function.__defaults__ = tuple(map(_unless_group, function.__defaults__))


def _unless_group(value: Any) -> Any:
    """A value; None, which means the default group, in the place of a group."""
    return None if isinstance(value, dist.ProcessGroup) else value


def close_connections(group: dist.ProcessGroup, peer: int) -> None:
    """Have gloo close this rank's connections of a group: it does so where a wait has timed out.

    Private: that; and the tag of a message that no program sends. The call is none of a learner's,
    and so not noted.

    Args:
        group: on gloo.
        peer: a rank of the group, by its number there, whose connection is not closed yet.
    """
    noted_recv = dist.ProcessGroup.recv
    recv = getattr(noted_recv, "__wrapped__", noted_recv)
    with contextlib.suppress(RuntimeError):
        work = recv(group, [torch.empty(1)], peer, UNUSED_TAG)
        work.wait(timedelta(milliseconds=1))


def destroy_group(group: dist.ProcessGroup) -> None:
    """Destroy a group, also one in Python.

    destroy_process_group finally asks a group for its name, which one in Python may not know.
    """
    name = GROUP_NAMES.get(group, "")
    try:
        dist.destroy_process_group(group)
    except RuntimeError:
        # torch's annotation is a type of str of its own, which no other version need have
        c10d._unregister_process_group(name)  # type: ignore[arg-type]


def number_next_group(first: int = 0) -> None:
    """Number the next group `first`.

    A group that only this rank has made, or failed to build, has used up a number.
    """
    c10d._world.group_count = first


# The function that makes a group which has its name: init_process_group, new_group and all that
# call them come there.
MAKES_GROUP = (c10d, "_new_process_group_helper")
# The function by which init_process_group finds the other ranks, unless it is given a store.
FINDS_RANKS = (c10d, "rendezvous")
# The function by which it makes the store of a world that has an address.
MAKES_STORE = (importlib.import_module("torch.distributed.rendezvous"), "_create_c10d_store")


def connects_when_made(backend: str) -> bool:
    """Whether the members of a group wait for each other while it is made.

    They do over gloo, and over NCCL only later. Private: torch's table of the backends that were
    registered.
    """
    if "gloo" in backend:
        return True
    plugin = dist.Backend._plugins.get(backend.upper())
    return plugin is not None and getattr(plugin.creator_fn, "OVER_GLOO", False)


def bound_device(group: Any) -> Any:
    """The device that a group was bound to when it was made; None for none. Not documented."""
    return getattr(group, "bound_device_id", None)


def is_shared(store: Any) -> bool:
    """Whether ranks can find each other's keys in the store of a group: in torch's own stores."""
    return isinstance(_without_prefixes(store), (dist.TCPStore, dist.FileStore, dist.HashStore))


def default_timeout() -> timedelta:
    """The timeout of a group that was given none. Not documented: the module's variable."""
    return c10d.default_pg_timeout


def set_default_timeout(limit: timedelta) -> None:
    """Make this the default timeout of new_group.

    That does not inherit the world's, but takes half an hour.
    """
    c10d.default_pg_timeout = limit


def set_timeouts(limit: timedelta) -> None:
    """Make this the timeout of the calls that groups begin from now on. Private: the function."""
    for group in GROUP_NAMES:
        c10d._set_pg_timeout(limit, group)


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """The timeout of a group, or the default one if its backend does not say.

    Private: the backend and its options.
    """
    with contextlib.suppress(AttributeError, IndexError, RuntimeError):
        first = group._device_types[0]
        return group._get_backend(first).options._timeout
    return getattr(group, "timeout", default_timeout())


def limit_of(group: dist.ProcessGroup, options: Any) -> timedelta:
    """How long a call of a group may wait: what its options say, or else the group's timeout."""
    own = getattr(options, "timeout", None)
    if isinstance(own, timedelta) and own > timedelta(0):
        return own
    return timeout_of(group)


def in_backward() -> bool:
    """Whether this thread is in a backward pass.

    Private: the function, which torch's FSDP uses as well.
    """
    return torch._C._current_graph_task_id() != -1


def quiet_loggers() -> None:
    """Silence tracebacks of what is raised anyway, and lines on what gloo lacks.

    Private: the names of the loggers of the two DTensor modules that write them.
    """
    for module in ("torch._subclasses.fake_tensor", "torch.distributed.tensor._collective_utils"):
        logging.getLogger(module).setLevel(logging.CRITICAL)


def functional_operators() -> list[tuple[str, Any]]:
    """The operators that make, or wait for, functional collectives, with their names.

    torch has no such operator of several tensors for some of them.
    """
    operators = torch.ops._c10d_functional
    found = []
    for name in (*FUNCTIONAL_METHODS, "wait_tensor"):
        if hasattr(operators, name):
            found.append((name, getattr(operators, name)))
    return found


def by_position(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...] | None:
    """The arguments of a call of a functional operator, in the operator's order.

    None if they do not fit it: the operator says what is wrong. Private: the operator's schema.
    """
    names = [argument.name for argument in operator.default._schema.arguments]
    by_name = names[len(args) : len(args) + len(kwargs)]
    if set(by_name) != set(kwargs):
        return None
    return (*args, *(kwargs[name] for name in by_name))


def functional_count(name: Any) -> int | None:
    """How many collectives the group of this name has begun in C++.

    None for a group in Python, or one that is gone. Private: the method.
    """
    for group, its_name in GROUP_NAMES.items():
        if its_name == name and type(group) is dist.ProcessGroup:
            with contextlib.suppress(RuntimeError):  # its backend does not count
                # torch's stubs lack the method
                return group._get_sequence_number_for_group()  # type: ignore[attr-defined]
    return None


def is_tracing(args: Any) -> bool:
    """Whether an operator with these arguments computes nothing, because torch traces a program.

    Private: the function that looks for a mode of fake tensors.
    """
    return detect_fake_mode(args) is not None


def key_of(storage: torch.UntypedStorage) -> int:
    """The storage's address, unique among living storages; C++ keys its Works by it."""
    return storage._cdata


def sender_of(work: dist.Work) -> int | None:
    """The rank in the group that a received message came from; None if its backend does not say.

    Private: a method of Work.
    """
    with contextlib.suppress(RuntimeError):
        return getattr(work, SENDER)()
    return None


# --- stores ---


def _without_prefixes(store: Any) -> Any:
    """The store below all prefixes. Not documented: the property."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def is_polling(store: dist.Store) -> bool:
    """Whether a store waits without a connection.

    It looks into a file, or into the memory of this process.
    """
    return isinstance(_without_prefixes(store), (dist.FileStore, dist.HashStore))


def timeout_of_store(store: dist.Store) -> timedelta:
    """How long a store waits for a key; zero for no limit."""
    # torch's stubs lack the property
    return store.timeout  # type: ignore[attr-defined]


def path_of(store: dist.Store) -> str:
    """The file of a store; "" if it has none."""
    return getattr(_without_prefixes(store), "path", "")


# --- profiler ---


def is_profiling() -> bool:
    """Whether a profiler runs in this process. Private: torch._C._autograd."""
    return torch._C._autograd._profiler_enabled()


def flight_record() -> list[dict[str, Any]]:
    """The newest collectives of this process, also those that C++ made.

    Private: torch's flight recorder.
    """
    # torch's stubs lack the function
    text = torch._C._distributed_c10d._dump_fr_trace_json()  # type: ignore[attr-defined]
    return json.loads(text).get("entries", [])


# --- tensors and numbers ---


def whole(number: Any) -> Any:
    """A whole number of any library as Python's own, where torch takes it for one.

    Anything else stays what it is.
    """
    if type(number) is int:
        return number
    try:
        return int(operator.index(number))
    except TypeError:
        # as pybind11 does it, for which numpy.float32(1) is 1, and 1.0 is no whole number
        is_whole = hasattr(number, "__int__") and not isinstance(number, float)
    return int(number) if is_whole else number


def is_compiled(function: Any) -> bool:
    """Whether torch.compile has made this function. Private: the attribute with the original."""
    return inspect.isfunction(function) and hasattr(function, "_torchdynamo_orig_callable")


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether the learner has put hooks on a tensor's gradient. Private: the table of them."""
    return bool(tensor._backward_hooks)


# --- for simulated clusters ---


def gloo_group(store: Any, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    """A process group over gloo as init_process_group builds one, but not in torch's tables."""
    group = dist.ProcessGroup(store, rank, size)
    gloo = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(gloo)
    backend = dist.ProcessGroupGloo(store, rank, size, timeout)
    group._register_backend(torch.device("cpu"), gloo, backend)
    return group


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Have this called at the end of this thread's backward pass; RuntimeError if there is none."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def flops_of(
    operator: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int | None:
    """What an operator computes, as torch's FlopCounterMode counts it; None without a formula."""
    count = flop_registry.get(operator._overloadpacket)
    if count is None:
        return None
    return count(*args, **kwargs, out_val=value)
