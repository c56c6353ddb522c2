"""A warm cell there and back, distlab beside ipyparallel on the same engines, in turns."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable

from benchmarks.programs import first_sum, sum_in_group


def in_turns(contestants: dict[str, Callable[[], object]], repeat: int) -> dict[str, list[float]]:
    """Seconds of each call, `repeat` times, in turns, after five rounds that do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeat + 5):
        for name, call in contestants.items():
            began = time.perf_counter()
            call()
            if turn >= 5:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def measure(n: int, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Two tables: one function call on every rank, and one line of %%px."""
    import ipyparallel.client.magics
    from IPython.core.interactiveshell import InteractiveShell

    import distlab
    from distlab.client.magics import PxMagics

    shell = InteractiveShell.instance()
    with distlab.Cluster(n) as cluster:
        view = cluster.client[:]
        view.block = True
        calls = in_turns(
            {
                "cluster.run": lambda: cluster.run(first_sum),
                "apply_sync": lambda: view.apply_sync(sum_in_group),
            },
            repeat,
        )
        stock = ipyparallel.client.magics.ParallelMagics(shell, view)
        stock.stream_output = False
        with contextlib.redirect_stdout(io.StringIO()):
            cells = in_turns(
                {
                    "%%px": lambda: PxMagics(shell).cell_px("", "rank"),
                    "ipyparallel's %%px": lambda: stock.cell_px("", "rank"),
                },
                repeat,
            )
    return {"one all_reduce of one float": calls, "one line of %%px": cells}
