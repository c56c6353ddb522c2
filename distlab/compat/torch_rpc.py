"""The private parts of torch.distributed.rpc that distlab uses. Tried with torch 2.13 to 2.15.

Runs on every rank, where torch has imported its rpc already.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import autograd, rpc
from torch.distributed import distributed_c10d as c10d

UNSET = -1.0  # the timeout of a call that is given none
HAS_COLLECT_ALL = torch._C  # has the function that makes one future of several
RREF_PICKLER = rpc.internal._InternalRPCPickler if rpc.is_available() else None


def has_agent() -> bool:
    """Whether an agent runs in this process."""
    return rpc.is_available() and rpc.api._is_current_rpc_agent_set()


def default_store() -> dist.Store:
    """The store at which the default group met."""
    return c10d._get_default_store()


def threads_at_work() -> int:
    """How many threads of the agent's pool run something, in Python or in C++."""
    return _count("agent.thread_pool_size") - _count("agent.num_idle_threads")


def open_calls() -> int:
    """How many remote calls of this process have no answer yet."""
    return _count("agent.client_active_calls")


def _count(name: str) -> int:
    """A number that the agent knows; 0 if there is no agent."""
    if not has_agent():
        return 0
    known = rpc.api._get_current_rpc_agent().get_debug_info()
    return int(known.get(name, 0))


def start_agent(store: dist.Store, name: str, worker: int, workers: int, wanted: Any) -> None:
    """Start the agent of a worker.

    Its transports are those that can be freed: shared memory would keep a core busy and hide
    deadlocks.

    Args:
        store: a new one, at which all workers meet.
        name: the name of the worker.
        worker: its id.
        workers: how many there are.
        wanted: options, of which the number of threads and the timeout are used.
    """
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=wanted.num_worker_threads,
        rpc_timeout=wanted.rpc_timeout,
        _transports=["uv"],
        _channels=["basic"],
    )
    autograd._init(worker)
    agent = rpc.TensorPipeAgent(store, name, worker, workers, options, {}, [])
    rpc.api._init_rpc_states(agent)


def passed_on_as_by_owner(reduced: tuple[Any, Any]) -> tuple[Any, Any]:
    """A pickled RRef as if its owner had sent it.

    C++ keeps the first agent of a process for its messages about RRefs. With a later agent no RRef
    could be passed on, because the owner is asked through the first one; an RRef that its owner
    sends needs no message.
    """
    receive, (rref,) = reduced
    owner, *ids, _, kind = rref  # the last but one is the worker that sends it
    return receive, ((owner, *ids, owner, kind),)


def use_plain_optimizers() -> None:
    """Have DistributedOptimizer use optimizers in plain Python, once it is imported.

    Those in TorchScript are deprecated, and pass RRefs on in C++, which a later agent of a process
    cannot do.
    """
    optimizers = sys.modules.get("torch.distributed.optim.optimizer")
    if optimizers is not None:
        vars(optimizers)["functional_optim_map"] = {}
        optimizers.logger.setLevel("ERROR")  # it would advise TorchScript


def drop_rrefs() -> None:
    """Tell the owners that this process holds no RRef, and wait until nobody holds its own."""
    rpc.api._delete_all_user_and_unforked_owner_rrefs()


def abandon() -> Any:
    """Forget the agent while it serves something that does not end.

    It is returned, because it must live as long as the process.
    """
    agent = rpc.api._get_current_rpc_agent()
    rpc.api._destroy_rref_context(True)
    rpc.api._reset_current_rpc_agent()
    return agent
