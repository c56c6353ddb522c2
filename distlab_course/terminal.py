"""What the labs about launching need before `%%bash` can be their terminal.

Runs in the notebook's kernel.
"""

import os
import socket
import sys

from distlab_course.practice import loopback_interface

# how names begin that a launcher sets
SET_BY_LAUNCHERS = (
    *("RANK", "WORLD_", "LOCAL_", "GROUP_", "ROLE_", "MASTER_"),
    *("TORCH", "OMP_", "CUDA_VISIBLE"),
)


def clean_environment() -> None:
    """Make `os.environ`, which the commands of this notebook get, that of a fresh terminal.

    Commands such as torchrun are found beside this notebook's Python, nothing that an outer
    launcher has set is left, gloo uses the loopback interface, whatever this machine's name
    resolves to, and tracebacks have no colours.
    """
    for name in list(os.environ):
        if name.startswith((*SET_BY_LAUNCHERS, "PYTHONUNBUFFERED")):
            del os.environ[name]
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    os.environ.update(GLOO_SOCKET_IFNAME=loopback_interface(), PYTHON_COLORS="0")


def free_port() -> int:
    """The number of a port of this machine that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
