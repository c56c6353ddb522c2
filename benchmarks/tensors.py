"""64 MB to four ranks and back from one, distlab beside ipyparallel's own push and pull of the same bytes, in turns."""

from __future__ import annotations

from benchmarks.cells import in_turns

MEGABYTES = 64


def measure(n: int, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Two tables: push to all ranks, pull from one."""
    import torch

    import distlab

    tensor = torch.arange(MEGABYTES * 250_000, dtype=torch.float32)
    array = tensor.numpy()
    with distlab.Cluster(n) as cluster:
        view, one = cluster.client[:], cluster.client[0]
        push = in_turns(
            {
                "cluster.push (tensor)": lambda: cluster.push({"x": tensor}),
                "DirectView.push (numpy)": lambda: view.push({"y": array}, block=True),
                "DirectView.push (tensor)": lambda: view.push({"z": tensor}, block=True),
            },
            repeat,
        )
        pull = in_turns(
            {
                "cluster.pull (tensor)": lambda: cluster.pull("x", ranks=[0]),
                "DirectView.pull (numpy)": lambda: one.pull("y", block=True),
                "DirectView.pull (tensor)": lambda: one.pull("z", block=True),
            },
            repeat,
        )
    return {f"push {MEGABYTES} MB to {n} ranks": push, f"pull {MEGABYTES} MB from one rank": pull}
