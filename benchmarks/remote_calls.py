"""A remote call on a cluster beside one of plain torch that mp.spawn starts: the same program, timed on rank 0."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

LOOPS = 300
PLAIN = "torch alone, its transport over TCP"


def add(a: int, b: int) -> int:
    return a + b


def seconds_of_calls() -> float:
    """Seconds of one rpc_sync of a function in Python to the next worker, the mean of many. Runs on: worker 0."""
    from torch.distributed import rpc

    for _ in range(30):
        rpc.rpc_sync("worker1", add, (1, 2))
    began = time.perf_counter()
    for _ in range(LOOPS):
        rpc.rpc_sync("worker1", add, (1, 2))
    return (time.perf_counter() - began) / LOOPS


def on_cluster(rank: int, world_size: int) -> float:
    """The calls on a rank of a cluster, by a function that travels by value as that of a cell does."""
    import torch.distributed as dist
    from torch.distributed import rpc

    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    seconds = seconds_of_calls() if rank == 0 else 0.0
    dist.barrier()
    rpc.shutdown()
    return seconds


def alone(rank: int, world_size: int, path: str, transports: list[str] | None) -> None:
    """The calls in a process of mp.spawn, which writes their seconds into a file."""
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}.store", _transports=transports)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    if rank == 0:
        Path(path).write_text(json.dumps(seconds_of_calls()))
    rpc.shutdown()


def spawned(transports: list[str] | None) -> float:
    """Seconds of a call of plain torch."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/seconds"
        mp.spawn(alone, (2, path, transports), nprocs=2)
        return json.loads(Path(path).read_text())


def measure(repeat: int) -> dict[str, dict[str, list[float]]]:
    """One table of contestants, the peer last."""
    import distlab

    rows: dict[str, list[float]] = {"on a cluster": [], "torch alone, its default transport": [], PLAIN: []}
    with distlab.Cluster(2) as cluster:
        for _ in range(repeat):
            rows["on a cluster"].append(cluster.run(on_cluster)[0])
            rows["torch alone, its default transport"].append(spawned(None))
            rows[PLAIN].append(spawned(["uv"]))
    return {"rpc_sync of a function in Python, 2 ranks": rows}
