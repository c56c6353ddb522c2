"""The ranks join a generation of the group: all of them, or an error that says who did not and why.

They are asked to when they have finished earlier cells.

Runs on the notebook's kernel, called by ranks.py; entry.py's `join` replies on every rank.
failed_cell.py takes `of_ipyparallel`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from typing import Any

from distlab.compat.ipyparallel import NoSuchEngineError, Replies, engines_exist, engines_with_work
from distlab.diagnosis import deaths, endings, joining, readable
from distlab.errors import ClusterError
from distlab.notebook import interrupts, seconds
from distlab.notebook.plan import Plan
from distlab.notebook.processes import Processes
from distlab.wire import messages
from distlab.wire.messages import Failure
from distlab.wire.rendezvous import Joined
from distlab.words import rank_list


def wait_for_earlier_cells(client: Any, lost: Collection[int]) -> None:
    """Wait until the living ranks have finished what they were sent before.

    A person may interrupt the wait.

    Args:
        client: ipyparallel's Client.
        lost: the ranks that have died.
    """
    deadline = time.monotonic() + seconds.BUILD
    busy = engines_with_work(client) - set(lost)
    while busy:
        if time.monotonic() > deadline:
            running = f"an earlier cell is still running on {rank_list(sorted(busy))}"
            raise ClusterError(
                f"The process group cannot be rebuilt: {running} after {seconds.BUILD:g} s. "
                "Call cluster.interrupt() first."
            )
        with interrupts.allowed():
            time.sleep(0.002)
        busy = engines_with_work(client) - set(lost)


def join_all(
    plan: Plan,
    processes: Processes,
    joins: Mapping[int, Callable[[], Joined | Failure]],
    is_first: bool,
) -> list[Joined]:
    """Have each rank call its function of `joins`, and return what the ranks report, by rank.

    Args:
        plan: of the cluster.
        processes: the ranks.
        joins: what each rank calls, by rank.
        is_first: whether the cluster starts.

    Raises:
        ClusterError: a rank has failed, or none joins for a while.
    """
    pending: dict[int, futures.Future[Any]] = {}
    for rank, join in joins.items():
        try:
            with engines_exist():
                result = processes.client.direct_view([rank]).apply_async(join)
        except NoSuchEngineError as error:  # the rank has just ended
            processes.channel.ask(pending, 0, messages.FREE)
            failed = [_why_not_joined(processes, rank, error)]
            raise _not_built(plan, failed, sorted(pending), is_first) from error
        pending |= Replies(result, [rank]).futures
    joined, failed = _wait_until_joined(plan, processes, pending)
    if len(joined) == len(joins):
        return [joined[rank] for rank in sorted(joined)]
    processes.channel.ask(pending, 0, messages.FREE)
    raise _not_built(plan, failed, sorted(pending), is_first)


def _wait_until_joined(
    plan: Plan, processes: Processes, pending: dict[int, futures.Future[Any]]
) -> tuple[dict[int, Joined], list[Failure]]:
    """Wait until every rank has joined, until one has failed, or for as long as that may take.

    Args:
        plan: of the cluster.
        processes: the ranks.
        pending: the reply of each rank; those that have arrived are taken out of it.

    Returns:
        what each rank reports that has joined, and failures of others in the order of time.
    """
    joined: dict[int, Joined] = {}
    failed: list[Failure] = []
    # ranks wait for each other, then connect, and say themselves that this took too long
    limit = seconds.BUILD + _connecting(plan) + seconds.AFTER_DEATH
    while pending:
        done, _ = futures.wait(pending.values(), limit, futures.FIRST_COMPLETED)
        if not done:
            break
        for rank in sorted(pending):
            if pending[rank] not in done:
                continue
            future = pending.pop(rank)
            reply = future.exception() or future.result()
            if isinstance(reply, Joined):
                joined[rank] = reply
            else:
                failed.append(_why_not_joined(processes, rank, reply))
        if any(not joining.waited_to_join(failure) for failure in failed):
            break
        if failed:
            # These have only waited for others. A rank that waits may lose its connections before
            # the reply of the culprit is here.
            limit = seconds.AFTER_DEATH
    return joined, failed


def _why_not_joined(processes: Processes, rank: int, reply: Any) -> Failure:
    """Why a rank could not join.

    The rank describes it; if not, its process has ended, or ipyparallel knows.
    """
    if isinstance(reply, Failure):
        return readable.made_readable(reply)
    pid = processes.servers.pids.get(rank)
    ending = None
    if pid is not None:
        ending = processes.exit_reason(rank, pid)
    if ending is None and rank not in processes.client.ids:
        ending = endings.UNKNOWN
    if ending is not None:
        return Failure(rank, deaths.DIED, ending.words())
    return of_ipyparallel(rank, reply)


def of_ipyparallel(rank: int, reply: Any) -> Failure:
    """What ipyparallel knows of what a rank has raised; an error of its own is named as it is."""
    kind = getattr(reply, "ename", type(reply).__name__)
    return Failure(rank, kind, getattr(reply, "evalue", str(reply)))


def _not_built(
    plan: Plan, failed: list[Failure], missing: list[int], is_first: bool
) -> ClusterError:
    """Why the group could not be built, in words.

    Args:
        plan: of the cluster.
        failed: what ranks have raised, in the order of time.
        missing: the ranks that have not replied.
        is_first: whether the cluster starts.
    """
    return ClusterError(
        joining.not_built(failed, missing, seconds.BUILD, _connecting(plan), is_first)
    )


def _connecting(plan: Plan) -> float:
    """Seconds that ranks have to connect when all of them are there.

    They are those of a call, at most BUILD.
    """
    return min(plan.timeout, seconds.BUILD)
