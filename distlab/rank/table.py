"""All that distlab wraps in torch on a rank, in one table.

Runs on every rank; group.py installs it before it builds a group, and simulated/backend.py the
patches of its own classes.
"""

import functools
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed import rpc

from distlab.compat import torch as private
from distlab.rank import groups, rpc_calls, stores
from distlab.rank.cpp import (
    on_backward,
    on_begin_in_cpp,
    on_build_reducer,
    on_forward,
    on_give_to_reducer,
    on_keep_context,
)
from distlab.rank.functional import on_functional, on_wait_tensor
from distlab.rank.hooks import Patch, install_patches, on_then, on_wait, patches_of
from distlab.rank.meetings import on_make_store, on_rendezvous
from distlab.rank.world import on_destroy, on_init


def install_all() -> None:
    """Put every wrapper in place; a second time does nothing.

    Runs on: every rank, on its main thread, before a group is built.
    """
    install_patches(patches())


def patches() -> Iterator[Patch]:
    """Every function of torch that has a wrapper on a rank."""
    yield from patches_of(dist.ProcessGroup, dist.Work)
    yield Patch(torch.Future, "wait", on_wait)
    yield Patch(torch.Future, "then", on_then)
    for name, operator in private.functional_operators():
        replacement = on_wait_tensor if name == "wait_tensor" else on_functional
        yield Patch(operator, "__call__", replacement)
    for module in (dist, dist.distributed_c10d):
        yield Patch(module, "init_process_group", on_init)
        yield Patch(module, "destroy_process_group", on_destroy)
    yield Patch(*private.FINDS_RANKS, on_rendezvous)
    yield Patch(*private.MAKES_STORE, on_make_store)
    yield Patch(*private.MAKES_GROUP, groups.on_make_group)
    for name in stores.WAITING_METHODS:
        yield Patch(dist.Store, name, functools.partial(stores.on_store_wait, name))
    yield Patch(dist.TCPStore, "__init__", stores.on_open_store)
    if hasattr(dist, "ProcessGroupGloo"):
        yield Patch(dist.ProcessGroupGloo, "__init__", stores.on_build_gloo)
    yield Patch(dist.Reducer, "__init__", on_build_reducer)
    yield Patch(*private.GIVES_TO_REDUCER, on_give_to_reducer)
    for owner, name in private.BEGINNING_IN_CPP:
        yield Patch(owner, name, on_begin_in_cpp)
    yield Patch(torch.nn.parallel.DistributedDataParallel, "forward", on_forward)
    yield Patch(torch.autograd, "backward", on_backward)
    yield Patch(*private.KEEPS_CONTEXT, on_keep_context)
    if rpc.is_available():
        yield from rpc_calls.patches_of_rpc()
