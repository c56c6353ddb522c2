"""What an engine consists of, and the order in which it is imported.

Runs in the process of fork_server.py, which calls it before it forks, and in that of fresh.py.
"""

import contextlib
import importlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence

from distlab.compat.ipyparallel import defer_cluster_module

# compiled modules that an engine imports before torch, and then those that every rank does
COMPILED_FOR_ENGINE = ("zmq", "tornado.speedups", "psutil", "sqlite3")
COMPILED = (
    "_asyncio",
    "_blake2",
    "_contextvars",
    "_csv",
    "_curses",
    "_datetime",
    "_decimal",
    "_hashlib",
    "_heapq",
    "_pickle",
    "_posixsubprocess",
    "_queue",
    "_ssl",
    "_uuid",
    "_zoneinfo",
    "binascii",
    "fcntl",
    "resource",
    "termios",
    "unicodedata",
    "_lsprof",
    "pyexpat",
    "_bisect",
    "_bz2",
    "_json",
    "_lzma",
    "_multiprocessing",
    "_random",
    "_sha512",
    "_sha2",
    "grp",
    "zlib",
)
# modules in Python that every engine would otherwise import for itself, or that torch imports
PRELOADED = (
    "ipykernel.debugger",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "torchgen.model",
    "tqdm",
    "unittest",
    "distlab.rank.entry",
)


# the same for a rank that is no engine: what torch imports is most of it. The last one consists of
# libraries, and waits for torch's.
PRELOADED_WITHOUT_ENGINE = (
    "torchgen.model",
    "unittest.mock",
    "importlib.metadata",
    "urllib.request",
    "typing_extensions",
    "tqdm",
    "asyncio",
    "multiprocessing",
    "concurrent.futures.thread",
    "tarfile",
    "uuid",
    "difflib",
    "platform",
    "cloudpickle",
    "distlab.rank.entry",
    "distlab.debugger.console",
    "distlab.wire.recorded",
    "distlab.diagnosis.new_groups",
    "distlab.launch.fork_server",
    "numpy",
)


@contextlib.contextmanager
def torch_library(compiled: Sequence[str] = COMPILED) -> Iterator[None]:
    """Load torch's library while what is inside this computes.

    That is a fifth of the time that importing torch takes. The system loads one library at a time,
    so those that other modules consist of are loaded before.

    Args:
        compiled: these modules.
    """
    import ctypes  # not for the notebook's kernel, which starts this server

    import_all(compiled)
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        yield  # importing torch will say what is wrong with it
        return
    folder = os.path.join(os.path.dirname(torch.origin), "lib")
    load = ctypes.CDLL(None).dlopen  # without Python's lock, unlike ctypes.CDLL(name)
    load.argtypes = [ctypes.c_char_p, ctypes.c_int]
    load.restype = ctypes.c_void_p

    def load_all() -> None:
        """Load them in torch's own order; where that fails, torch says why."""
        first = os.path.join(folder, "libtorch_global_deps.so").encode()
        if load(first, os.RTLD_NOW | os.RTLD_GLOBAL):
            load(os.path.join(folder, "libtorch_cpu.so").encode(), os.RTLD_NOW)

    thread = threading.Thread(target=load_all)
    thread.start()
    yield
    thread.join()


def import_engine() -> None:
    """Import what an engine consists of, and torch's library beside it, and prepare one."""
    with torch_library((*COMPILED_FOR_ENGINE, *COMPILED)):
        with defer_cluster_module():
            from distlab.launch import engine
        import_all(PRELOADED)
        engine.prepare()


def import_ranks(preload: Sequence[str]) -> None:
    """Import what a rank is beside an engine, torch for the most part, and a person's modules."""
    importlib.import_module("distlab.rank.group")
    for module in preload:
        importlib.import_module(module)


def import_ranks_of_launcher(preload: Sequence[str]) -> None:
    """Import what a rank is that is no engine, and torch's library beside it."""
    with torch_library():
        import_all(PRELOADED_WITHOUT_ENGINE)
    import_ranks((*preload, "distlab.rank.serving", "distlab.rank.program"))


def import_all(modules: Sequence[str]) -> None:
    """Import those of some modules that this Python and these libraries have."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
