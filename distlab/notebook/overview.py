"""What a person sees of a cluster itself: that its ranks are starting, and what each of them does.

Runs on the notebook's kernel, called by ranks.py for the start, and by cluster.py for `Cluster`'s
own display.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from distlab.compat.ipython import notebook_shell
from distlab.notebook.display import Item, Place, bundle_of
from distlab.notebook.plan import Plan
from distlab.notebook.start_methods import default_start_method
from distlab.tables import count


@contextlib.contextmanager
def shown_start(n: int, backend: str) -> Iterator[None]:
    """Show that ranks are starting; afterwards, one line that is the same on every run."""
    place = Place()
    place.show({"text/plain": f"starting {count(n, 'rank')} ..."})
    try:
        yield
        if notebook_shell() is not None:
            are = "is" if n == 1 else "are"
            place.leave({"text/plain": f"{count(n, 'rank')} {are} ready ({backend})."})
    finally:
        place.erase()


def headline_of(plan: Plan, hosts: Sequence[str], simulated: str) -> str:
    """What a cluster is, in a line.

    Args:
        plan: how it was started.
        hosts: name of each rank's host; none where all are here.
        simulated: the machines that it is on, in words; "" for real ones.
    """
    words = f"Cluster({plan.n})"
    if hosts:
        words += f" on {' and '.join(dict.fromkeys(hosts))}"
    words += f": backend {plan.backend}"
    if plan.engines != default_start_method():
        words += f", engines {plan.engines}"
    if simulated:
        words += f", {simulated}"
    return words


def bundle_of_cluster(headline: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cluster as text and as HTML, one line a rank, from `Cluster.describe`."""
    state_width = max((len(row["state"]) for row in rows), default=0)
    host_width = max((len(row.get("host", "")) for row in rows), default=0)
    items = []
    for row in rows:
        memory = "-"
        if row["megabytes"] is not None:
            memory = f"{row['megabytes']:.0f} MB"
        words = f"{row['state']:<{state_width}}  {memory:>7}"
        if "host" in row:
            words += f"  {row['host']:<{host_width}}"
        words += f"  pid {row['pid']}"
        items.append(Item("state", (row["rank"],), words))
    return bundle_of(items, headline)
