"""A warm cell there and back, distlab beside ipyparallel on the same engines."""

from __future__ import annotations

import contextlib
import io
from functools import partial

from benchmarks.harness import Found, timed_in_turns
from benchmarks.programs import first_sum, sum_in_group


def measure(n: int, repeat: int) -> dict[str, Found]:
    """Two tables: one function call on every rank, and one line of %%px."""
    import ipyparallel.client.magics
    from IPython.core.interactiveshell import InteractiveShell

    import distlab
    from distlab.notebook.magics import PxMagics

    shell = InteractiveShell.instance()
    with distlab.Cluster(n) as cluster, contextlib.redirect_stdout(io.StringIO()):
        view = cluster.client[:]
        view.block = True
        stock = ipyparallel.client.magics.ParallelMagics(shell, view)
        stock.stream_output = False
        calls = {
            "cluster.run": partial(cluster.run, first_sum),
            "apply_sync": partial(view.apply_sync, sum_in_group),
        }
        lines = {
            "%%px": lambda: PxMagics(shell).cell_px("", "rank"),
            "ipyparallel's %%px": lambda: stock.cell_px("", "rank"),
        }
        return {
            "one all_reduce of one float": timed_in_turns(calls, repeat, warm_up=5),
            "one line of %%px": timed_in_turns(lines, repeat, warm_up=5),
        }
