"""Calls in the notebook's own process that would wait for ever are refused before they block.

A cell without %%px runs in the notebook's kernel, which is one process. There `init_process_group`
for two would wait in C++, where no interrupt reaches it; `spawn` starts processes that cannot find
the functions of a notebook. The calls themselves are refused: a function with such a call may be
defined here, for the ranks or for a file. Other calls of torch.distributed raise at once, because
this process has no group: `needs_ranks` recognises that.

Runs on the notebook's kernel; put in place by magics.py. torch is not imported for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from distlab.errors import ClusterError
from distlab.launch import reaper

# Backends that wait for all ranks. One for tests, or of the learner's, may not.
BACKENDS = {"gloo", "nccl"}
# a variable that torchrun sets, which has then started the other processes, too
LAUNCHED = "TORCHELASTIC_RUN_ID"
# What torch raises where there is no process group, and nothing of what a launcher gives to a rank.
WITHOUT_GROUP = re.compile(
    "Default process group has not been initialized|Could not resolve the process group|"
    "RPC has not been initialized|Process group cannot be None|"
    "Unsupported group type: <class 'NoneType'>|"
    "environment variable [A-Z_]+ expected, but not set|LOCAL_RANK is not in the environment"
)


@dataclass(frozen=True)
class Wrapped:
    """A function of torch that is wrapped in this process.

    Attributes:
        name: its own.
        instead: what is called in its place, with the function before the arguments.
        other_modules: where else it is, besides the module that defines it.
    """

    name: str
    instead: Callable[..., Any]
    other_modules: tuple[str, ...]


WRAPPED_BY_MODULE: dict[str, Wrapped] = {}  # by the module that defines the function


def refuse_blocking_calls() -> None:
    """Wrap the calls in this process, now or when their modules are imported; once."""
    if any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        return
    owner = os.getpid()
    WRAPPED_BY_MODULE["torch.distributed.distributed_c10d"] = Wrapped(
        "init_process_group",
        functools.partial(_init_process_group, owner),
        other_modules=("torch.distributed",),
    )
    WRAPPED_BY_MODULE["torch.multiprocessing"] = Wrapped(
        "spawn",
        functools.partial(_spawn, owner),
        other_modules=("torch.multiprocessing.spawn",),
    )
    sys.meta_path.insert(0, _WhenImported())
    for name in WRAPPED_BY_MODULE:
        if name in sys.modules:
            _wrap(name)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds modules as the others on sys.meta_path do; some are wrapped once they are imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in WRAPPED_BY_MODULE:
            return None
        spec = self._found_by_others(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_wrap(module: ModuleType) -> None:
                execute(module)
                _wrap(name)

            # a loader belongs to one module: nothing else is executed by this method
            spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """What the first of the other finders finds that knows the module."""
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None


def _wrap(name: str) -> None:
    """Wrap the function of a module that has been imported, wherever it is already."""
    wrapped = WRAPPED_BY_MODULE[name]
    original = getattr(sys.modules[name], wrapped.name)
    if hasattr(original, "is_distlabs"):
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapped.instead(original, *args, **kwargs)

    call.is_distlabs = True  # type: ignore[attr-defined]  # a mark on the function object
    for place in (name, *wrapped.other_modules):
        if place in sys.modules:
            setattr(sys.modules[place], wrapped.name, call)


# --- what torch raises here ---


def needs_ranks(error: BaseException) -> bool:
    """Whether torch raised this because it was called in the notebook, which is no rank."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not WITHOUT_GROUP.search(str(error)):
        return False
    return not dist.is_initialized()  # a learner may have made a group of this one process


def without_torch(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback that ends with the last line outside torch.

    The lines in torch say nothing about the mistake.
    """
    folder = os.path.join(os.path.dirname(sys.modules["torch"].__file__ or ""), "")
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    while entries and entries[-1].tb_frame.f_code.co_filename.startswith(folder):
        entries.pop()
    shown = None
    for entry in reversed(entries):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


# --- the calls ---


def _init_process_group(
    owner: int, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> None:
    """Call init_process_group, unless it would wait here for others that nobody has started.

    Args:
        owner: the number of the notebook's process; in another one, nothing is refused.
        original: torch's function.
        *args, **kwargs: as given to it.
    """
    with contextlib.suppress(TypeError):  # which torch raises itself
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        n = _world_size(given)
        is_here = os.getpid() == owner
        if is_here and n > 1 and _backend_waits(given) and not _others_may_come(given):
            raise ClusterError(
                f"This kernel is one process, and init_process_group(world_size={n}) would wait "
                f"here for {n - 1} more. With Cluster({n}) and %%px the ranks already have a "
                "group, so begin the cell with %%px, and leave out init_process_group."
            )
    original(*args, **kwargs)


def _world_size(given: dict[str, Any]) -> int:
    """The world size of a call of init_process_group; 1 if it is not known.

    It stands in the arguments, in the URL, or in the environment.
    """
    url = given.get("init_method")
    if url is None and given.get("store") is None:
        url = "env://"
    parts = urlsplit(url or "")
    sizes = [given.get("world_size")]
    sizes += parse_qs(parts.query).get("world_size", [])
    if parts.scheme == "env":
        sizes.append(os.environ.get("WORLD_SIZE"))
    for size in map(str, sizes):
        if re.fullmatch(r"\d+", size):
            return int(size)
    return 1


def _backend_waits(given: dict[str, Any]) -> bool:
    """Whether a call's backend waits for all ranks."""
    backend = given.get("backend")
    if backend is None:
        return True
    names = re.split("[,:]", str(backend).lower())  # such as "cpu:gloo,cuda:nccl"
    return not BACKENDS.isdisjoint(names)


def _others_may_come(given: dict[str, Any]) -> bool:
    """Whether other processes may be about to join.

    They may if the call limits its wait, or where there is a launcher or a child.
    """
    return given.get("timeout") is not None or LAUNCHED in os.environ or _has_children()


def _has_children() -> bool:
    """Whether this process has started others that are not distlab's or Python's own."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has ended
            command = " ".join(child.cmdline())
            is_distlabs = reaper.TAG in child.environ() or reaper.__file__ in command
            is_pythons = "multiprocessing.resource_tracker" in command
            if not is_distlabs and not is_pythons:
                return True
    return False


def _spawn(owner: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call torch.multiprocessing.spawn, unless new processes could not find the function.

    They cannot find one of the notebook's.

    Args:
        owner: the number of the notebook's process; in another one, nothing is refused.
        original: torch's function.
        *args, **kwargs: as given to it.
    """
    with contextlib.suppress(TypeError):  # which torch raises itself
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        function = given["fn"]
        is_new_python = given.get("start_method", "spawn") in ("spawn", "forkserver")
        is_notebooks = getattr(function, "__module__", "") == "__main__"
        if os.getpid() == owner and is_new_python and is_notebooks:
            name = getattr(function, "__name__", "")
            if not name.isidentifier():
                name = "fn"
            raise ClusterError(
                f"spawn starts new processes, and they cannot find {name}, which only this "
                f"notebook has. distlab.spawn({name}, args, nprocs={given.get('nprocs', 1)}) sends "
                f"it to processes that are just as new. Or use the ranks of a cluster, where "
                f"cluster.run({name}) calls {name}(rank, world_size)."
            )
    return original(*args, **kwargs)
