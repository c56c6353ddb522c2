"""The private parts of torch.distributed.rpc that distlab uses. Tried with torch 2.8, 2.13 and 2.15.

Runs on every rank, where torch has imported its rpc already.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed import rpc

PARTS = {
    "torch.distributed.distributed_c10d:_get_default_store": "start RPC at the cluster's store",
    "torch.distributed.rpc:api._is_current_rpc_agent_set": "tell whether this rank serves remote calls",
    "torch.distributed.rpc:api._get_current_rpc_agent": "tell a remote call from a deadlock",
    "torch.distributed.rpc:api._invoke_rpc": "note remote calls",
    "torch.distributed.rpc:api.PythonUDF": "tell who calls a function, and name it",
    "torch.distributed.rpc:api._all_gather_sequence_id": "start RPC again",
    "torch.distributed.rpc:api._all_gather_sequence_id_to_states": "start RPC again",
    "torch.distributed.rpc:api._reset_current_rpc_agent": "start RPC again where a served function does not end",
    "torch.distributed.rpc:api._destroy_rref_context": "start RPC again where a served function does not end",
    "torch.distributed.rpc:_init_counter": "start RPC again",
    "torch.distributed.rpc:internal._run_function": "show what a served function prints and raises",
    "torch.distributed.rpc:internal._handle_exception": "show what a served function raises",
    "torch.distributed.rpc:internal._pickler": "send functions of a cell",
    "torch.distributed.rpc:internal._InternalRPCPickler._py_rref_reducer": "pass RRefs on after RPC was started again",
    "torch.distributed.rpc:api._delete_all_user_and_unforked_owner_rrefs": "shut RPC down that was started again",
    "torch.distributed.optim.optimizer:functional_optim_map": "use DistributedOptimizer after RPC was started again",
    "torch:_C._collect_all": "tell what wait_all waits for",
}
TRANSPORTS, CHANNELS = ["uv"], ["basic"]  # shared memory would busy-poll, hide deadlocks, and not be freed
UNSET = -1.0  # the timeout of a call that is given none


def there() -> bool:
    """Whether an agent runs in this process."""
    return rpc.is_available() and rpc.api._is_current_rpc_agent_set()


def default_store() -> dist.Store:
    """The store at which the default group has met."""
    return c10d._get_default_store()


def shared_store(store: Any) -> dist.Store:
    """The store below the prefixes of this one: the same for all groups that are built at it."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def skip_rrefs(count: int) -> None:
    """Leave out so many numbers of RRefs. Owners remember those of the process that this one replaces: a value under
    a number that they know would never be there."""
    for _ in range(count):
        rpc.PyRRef(None)


def threads_at_work() -> int:
    """How many threads of the agent's pool run something, in Python or in C++; 0 where there is no agent."""
    if not there():
        return 0
    counts = rpc.api._get_current_rpc_agent().get_debug_info()
    return int(counts["agent.thread_pool_size"]) - int(counts["agent.num_idle_threads"])


def open_calls() -> int:
    """How many remote calls of this process have no answer yet; 0 where there is no agent."""
    return int(rpc.api._get_current_rpc_agent().get_debug_info()["agent.client_active_calls"]) if there() else 0


def replace(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """Put what `make` makes of rpc's function of this name in its place; the function before."""
    before = getattr(rpc.api, name, None) or getattr(rpc, name)
    after = make(before)
    for module in (rpc, rpc.api):
        if hasattr(module, name):
            setattr(module, name, after)
    return before


def serve_with(run: Callable[..., Any], fail: Callable[..., Any], pickler: type, request: Callable[..., Any]) -> None:
    """Have C++ run functions, and raise what they raised, by these; pickle with this class, what `request` makes."""
    rpc.internal._run_function, rpc.internal._handle_exception = run, fail
    rpc.internal._pickler, rpc.api.PythonUDF = pickler, request


def failed(message: str) -> Any:
    """What a served function gives instead of a result when it raised."""
    return rpc.internal.RemoteException(message, RuntimeError)


def failure(result: Any) -> str | None:
    """The message of `failed`; None of any other result."""
    return result.msg if isinstance(result, rpc.internal.RemoteException) else None


def collect_with(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a function around the one that makes one future of several."""
    torch._C._collect_all = make(torch._C._collect_all)


def options(given: Any, url: str) -> Any:
    """Options of an agent that meets at this URL: the given ones, None for torch's, on transports that can be freed."""
    given = given or rpc.TensorPipeRpcBackendOptions()
    return rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=given.num_worker_threads,
        rpc_timeout=given.rpc_timeout,
        init_method=url,
        device_maps=given.device_maps,
        devices=given.devices,
        _transports=TRANSPORTS,
        _channels=CHANNELS,
    )


def start(init: Callable[..., Any], name: str, worker: int, workers: int, options: Any) -> None:
    """Start the agent by torch's own `init`, with counters that are alike on ranks that are new and that are not."""
    rpc._init_counter = 0
    rpc.api._all_gather_sequence_id.clear()
    rpc.api._all_gather_sequence_id_to_states.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using a Backend")  # torch's own use of its own group
        init(name, rank=worker, world_size=workers, rpc_backend_options=options)


def keep_rrefs(again: Callable[[], bool]) -> None:
    """Have RRefs work where `again` tells that a worker's process had an agent before.

    C++ keeps the first agent of a process for its messages about RRefs: in a later one no RRef could be passed on, and
    a graceful shutdown would wait for ever. So an RRef is passed on as if by its owner, of which no message is sent,
    and the value is kept until the agent is shut down.
    """
    pickler, drop = rpc.internal._InternalRPCPickler, rpc.api._delete_all_user_and_unforked_owner_rrefs
    reduce = pickler._py_rref_reducer

    def reduced(self: Any, rref: Any) -> Any:
        receive, (fork,) = reduce(self, rref)
        owner, *ids, parent, kind = fork
        return receive, ((owner, *ids, owner if again() else parent, kind),)

    def dropped(*args: Any) -> None:
        if not again():
            drop(*args)

    pickler._py_rref_reducer, rpc.api._delete_all_user_and_unforked_owner_rrefs = reduced, dropped


def use_plain_optimizers() -> None:
    """Have DistributedOptimizer use optimizers in plain Python, once it is imported.

    Those in TorchScript are deprecated, and pass RRefs on in C++, where `keep_rrefs` does not reach.
    """
    optimizers = sys.modules.get("torch.distributed.optim.optimizer")
    if optimizers is not None:
        optimizers.functional_optim_map = {}
        optimizers.logger.setLevel("ERROR")  # it would advise TorchScript


def drop_rrefs() -> None:
    """Tell the owners that this process holds no RRef any more, and wait until nobody holds its own."""
    rpc.api._delete_all_user_and_unforked_owner_rrefs()


def abandon() -> Any:
    """Forget the agent while it serves something that does not end; it, which must live as long as the process."""
    agent = rpc.api._get_current_rpc_agent()
    rpc.api._destroy_rref_context(True)
    rpc.api._reset_current_rpc_agent()
    return agent
