"""This rank's connection to the cluster's store, at which every generation of the group meets.

Runs on every rank, called by group.py, meetings.py and rpc.py.
"""

import functools
from datetime import timedelta

import torch.distributed as dist


def connect_to_store(host: str, port: int) -> dist.Store:
    """This rank's only connection to the cluster's TCPStore.

    It is made again only after it was shut down.

    Runs on: a rank.
    """
    try:
        _connection(host, port).num_keys()
    except RuntimeError:
        _connection.cache_clear()
    return _connection(host, port)


@functools.cache
def _connection(host: str, port: int) -> dist.Store:
    """A client of the store, on every rank.

    torch's own rendezvous would let rank 0 serve a second store.
    """
    return dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=60))
