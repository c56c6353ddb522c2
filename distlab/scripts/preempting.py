"""`distlab run --preempt 1:20`: which ranks are preempted, and what is said of it at the end.

Runs in the launcher's process, called by options.py and run.py; notebook/preempting.py does it.
The mark of a test takes the same texts, in testing/shared_cluster.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from distlab.arguments import refuse
from distlab.notebook.cluster import Cluster
from distlab.notebook.preempting import EVERYONE, Preemption, order_of, preempting
from distlab.wire.preemption import Order

STEP = "step"
FORMS = "RANK:SECONDS or RANK:stepN"
IN_MARK = 'For example: @pytest.mark.ranks(2, preempt="1:step20", grace=5).'
EXAMPLE = "For example: --preempt 1:20 (seconds), 1:step20 or all:20."


def orders_of(asked: Sequence[str], n: int) -> tuple[Order, ...]:
    """The orders of a command line, such as "1:20", "1:step20" and "all:20".

    Args:
        asked: what was given, once for each --preempt.
        n: how many ranks there are.

    Raises:
        ArgumentError: one of them cannot be read, or names a rank that is not there.
    """
    return tuple(_order_of(one, n, "--preempt", EXAMPLE) for one in asked)


def orders_in_mark(asked: str | Sequence[str], n: int) -> tuple[Order, ...]:
    """The orders in a test's mark: one text as on the command line, or several in a list.

    Raises:
        ArgumentError: one of them cannot be read, or names a rank that is not there.
    """
    several = [asked] if isinstance(asked, str) else asked
    return tuple(_order_of(one, n, "the mark's preempt", IN_MARK) for one in several)


def _order_of(asked: str, n: int, name: str, example: str) -> Order:
    """The order that "1:20" or "all:step20" stands for.

    Args:
        asked: the text.
        n: how many ranks there are.
        name: that of the option, for a person.
        example: right ones, in a sentence.
    """
    if not isinstance(asked, str):
        refuse(name, FORMS, asked, example, wrong_type=True)
    whom, colon, when = asked.partition(":")
    counts_steps = when.startswith(STEP)
    number = when.removeprefix(STEP)
    is_rank = whom == EVERYONE or whom.isdecimal()
    if not colon or not is_rank or not _is_number(number, whole=counts_steps):
        refuse(name, FORMS, asked, example)
    if whom.isdecimal() and int(whom) >= n:
        refuse(name, f"for a rank from 0 to {n - 1}", asked, example)
    rank = whom if whom == EVERYONE else int(whom)
    if counts_steps:
        return order_of(rank, None, int(number), n)
    return order_of(rank, float(number), None, n)


def _is_number(text: str, whole: bool) -> bool:
    """Whether a text is a number above 0, such as 20 or 0.5."""
    if whole:
        return text.isdecimal() and int(text) > 0
    with contextlib.suppress(ValueError):
        return 0 < float(text) < float("inf")
    return False


@contextlib.contextmanager
def reported(
    cluster: Cluster, orders: Sequence[Order], grace: float, reports: list[str]
) -> Iterator[Preemption]:
    """Preempt ranks in what runs in the block, and add what happened to `reports`."""
    preemption = None
    try:
        with preempting(cluster, orders, grace) as preemption:
            yield preemption
    finally:
        if preemption is not None:
            reports.append(preemption.report)
