"""Said before it blocks: calls in the notebook's own process that would wait for processes which
nobody has started.

A cell without %%px runs in the notebook's kernel, which is one process. There `init_process_group`
for two would wait in C++, where no interrupt reaches it; `spawn` starts processes that cannot find
the functions of a notebook. The calls themselves are refused: a function with such a call may be
defined here, for the ranks or for a file. Other calls of torch.distributed raise at once, because
this process has no group: `needs_ranks` recognises that.

Runs on the notebook's kernel; put in place by magics.py. torch is not imported for it.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from distlab.errors import ClusterError
from distlab.launch import reaper

# by the module in which a function is defined: the function, what is called in its place, and where
# else it is
WRAPPED: dict[str, tuple[str, Callable[..., Any], tuple[str, ...]]] = {}
# which wait for all others; one for tests, or of the learner's, may not
BACKENDS = {"gloo", "nccl"}
# a variable of torchrun's: it has started the other processes, too
LAUNCHED = "TORCHELASTIC_RUN_ID"
# what torch raises where there is neither a process group nor what a launcher gives to a rank
WITHOUT_GROUP = re.compile(
    "Default process group has not been initialized|Could not resolve the process group|RPC has not been initialized|"
    "Process group cannot be None|Unsupported group type: <class 'NoneType'>|"
    "environment variable [A-Z_]+ expected, but not set|LOCAL_RANK is not in the environment"
)


def install() -> None:
    """Wrap the calls in this process, now or when their modules are imported; once."""
    if any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        return
    owner = os.getpid()
    waits = functools.partial(_init_process_group, owner)
    spawns = functools.partial(_spawn, owner)
    WRAPPED["torch.distributed.distributed_c10d"] = (
        "init_process_group",
        waits,
        ("torch.distributed",),
    )
    WRAPPED["torch.multiprocessing"] = "spawn", spawns, ("torch.multiprocessing.spawn",)
    sys.meta_path.insert(0, _WhenImported())
    for name in WRAPPED:
        if name in sys.modules:
            _wrap(name)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds modules as the others on sys.meta_path do, and wraps the calls of those that have some,
    once imported.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in WRAPPED:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_wrap(module: ModuleType) -> None:
                execute(module)
                _wrap(name)

            spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap(name: str) -> None:
    """Wrap the function of a module that has been imported, wherever it is already."""
    function, instead, places = WRAPPED[name]
    original = getattr(sys.modules[name], function)
    if hasattr(original, "is_distlabs"):
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return instead(original, *args, **kwargs)

    call.is_distlabs = True  # type: ignore[attr-defined]
    for place in (name, *places):
        if place in sys.modules:
            setattr(sys.modules[place], function, call)


# --- what torch raises here ---


def needs_ranks(error: BaseException) -> bool:
    """Whether torch raised this because it was called in the notebook's process, which is no rank."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not WITHOUT_GROUP.search(str(error)):
        return False
    return not dist.is_initialized()  # a learner may have made a group of this one process


def without_torch(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback that ends with the last line outside torch: the lines in torch say nothing about
    the mistake.
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
    """init_process_group: refused where it would wait in the notebook's kernel for others that
    nobody has started.
    """
    with contextlib.suppress(TypeError):  # which torch raises itself
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        n = _world_size(given)
        if os.getpid() == owner and n > 1 and _waits(given) and not _others_may_come(given):
            raise ClusterError(
                f"This kernel is one process, and init_process_group(world_size={n}) would wait here for {n - 1} more. "
                f"Cluster({n}) and %%px have the group already: begin the cell with %%px, and leave "
                "init_process_group out."
            )
    original(*args, **kwargs)


def _world_size(given: dict[str, Any]) -> int:
    """The world size of a call of init_process_group, from its arguments, its URL or the
    environment; 1 if unknown.
    """
    url = given.get("init_method")
    if url is None and given.get("store") is None:
        url = "env://"
    sizes = [given.get("world_size"), *parse_qs(urlsplit(url or "").query).get("world_size", [])]
    if urlsplit(url or "").scheme == "env":
        sizes.append(os.environ.get("WORLD_SIZE"))
    numbers = [int(size) for size in sizes if re.fullmatch(r"\d+", str(size))]
    return numbers[0] if numbers else 1


def _waits(given: dict[str, Any]) -> bool:
    """Whether a call's backend waits for all ranks."""
    backend = given.get("backend")
    return backend is None or not BACKENDS.isdisjoint(re.split("[,:]", str(backend).lower()))


def _others_may_come(given: dict[str, Any]) -> bool:
    """Whether other processes may be about to join: the call limits its wait, a launcher is there,
    or children are.
    """
    return given.get("timeout") is not None or LAUNCHED in os.environ or _has_children()


def _has_children() -> bool:
    """Whether this process has started others that are not distlab's or Python's own."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has ended
            words = " ".join(child.cmdline())
            is_own = reaper.TAG in child.environ() or reaper.__file__ in words
            if not is_own and "multiprocessing.resource_tracker" not in words:
                return True
    return False


def _spawn(owner: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch.multiprocessing.spawn: refused for a function of the notebook's, which the new
    processes cannot find.
    """
    with contextlib.suppress(TypeError):
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        function = given["fn"]
        is_new_python = given.get("start_method", "spawn") in ("spawn", "forkserver")
        if (
            os.getpid() == owner
            and is_new_python
            and getattr(function, "__module__", "") == "__main__"
        ):
            name = getattr(function, "__name__", "")
            name = name if name.isidentifier() else "fn"
            raise ClusterError(
                f"spawn starts new processes, and they cannot find {name}, which only this notebook has. The ranks of "
                f"Cluster({given.get('nprocs', 1)}) are processes with a group already: cluster.run({name}) calls "
                f"{name}(rank, world_size) there. Or write {name} to a file with %%writefile work.py, and import it."
            )
    return original(*args, **kwargs)
