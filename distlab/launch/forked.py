"""What a child of the fork server becomes: an engine, the controller, or a process with a store.

Runs in children of fork_server.py, which calls these functions and ends when they return.
"""

import gc
import importlib
import os
import socket
import sys
import time
from collections.abc import Sequence

from distlab.launch.logs import open_stderr, write_into_log
from distlab.wire import direct


def run_engine(number: int, reader: int, writer: int) -> None:
    """Be ipyparallel's engine `number`, with logs of its own. Runs in a forked child.

    Args:
        number: the engine's.
        reader, writer: the ends of a pipe, which this process and its parent can read.
    """
    import torch

    write_into_log(number)
    # OpenMP read the variable when torch was loaded in the parent
    num_threads = int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(num_threads)
    _part_from_other_ranks()
    serve(number, reader, writer, open_stderr(number))


def serve(number: int, reader: int, writer: int, stderr: int) -> None:
    """Be ipyparallel's engine, or a launcher's rank, until the end.

    Args:
        number: the engine's.
        reader, writer: the ends of a pipe, which this process and its parent can read.
        stderr: descriptor of the file that keeps what is written past Python.
    """
    if direct.address_of_launcher() is not None:
        # by its name, because a program that starts ranks is no rank itself
        importlib.import_module("distlab.rank.serving").serve(number)
        return
    from distlab.launch import engine

    engine.serve_as_engine(number, (reader, writer, stderr))


def _part_from_other_ranks() -> None:
    """End what forked processes share, and processes that a launcher started would not share.

    A program may depend on what its ranks share here, and fail where they are launched: one that
    forgets to send the weights of rank 0 to the others would train one model here and several
    there. docs/testing.md lists what stays. Python's own `random` is seeded anew by every fork.
    Runs in a forked child.
    """
    import multiprocessing

    import torch

    torch.default_generator.seed()
    if "numpy.random" in sys.modules:  # preloaded, or imported by another module that is
        sys.modules["numpy.random"].seed()
    multiprocessing.current_process().authkey = os.urandom(32)
    os.setsid()  # a rank that signals its process group reaches its own children alone


def run_controller(arguments: Sequence[str]) -> None:
    """Be ipyparallel's controller. Runs in a forked child."""
    from distlab.launch import controller

    gc.enable()
    prepared = sys.modules.get("ipyparallel.engine.app")
    if prepared is not None:
        prepared.IPEngine.clear_instance()  # a process is either
    sys.argv[1:] = arguments
    controller.main()


def run_store(listener: socket.socket) -> None:
    """Serve a TCPStore until the parent ends. Runs in a forked child."""
    from distlab.wire.rendezvous import serve

    store = serve(listener)
    while store is not None:  # it must be held, or it would end
        time.sleep(3600)
