"""Where ranks are, as they report it themselves."""

import os
import socket


def place(rank, world_size):
    """Where a rank is, as it and torchrun's variables have it."""
    names = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GLOO_SOCKET_IFNAME",
    )
    return (socket.gethostname(), *map(os.environ.get, names))
