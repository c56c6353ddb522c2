"""Why ranks could not join a process group.

Pure functions. Runs on the notebook's kernel, called by ranks.py.
"""

from collections.abc import Sequence

from distlab.diagnosis.advice import on_limit_of_processes
from distlab.diagnosis.deaths import DIED
from distlab.diagnosis.failures import raised_words
from distlab.wire.messages import Failure
from distlab.words import rank_list


def waited_to_join(failed: Failure) -> bool:
    """Whether a rank that could not join a group only waited for the others."""
    return (
        failed.consequence
        or failed.kind == "DistStoreError"
        or "timed out" in failed.message.lower()
    )


def not_built(
    failed: Sequence[Failure],
    missing: Sequence[int],
    patience: float,
    connecting: float,
    is_first: bool,
) -> str:
    """Why a process group could not be built, and what to do.

    Args:
        failed: what ranks raised, in the order of time.
        missing: ranks that have neither joined nor failed.
        patience: seconds that ranks wait for each other before they build the group.
        connecting: seconds that they then have to connect.
        is_first: whether the cluster starts; if not, its ranks are still there.
    """
    own = [one for one in failed if not waited_to_join(one)]
    first = (own or failed)[:1]
    again = "start the cluster again" if is_first else "call cluster.restart() for new ranks"
    parts = []
    for one in first:
        if one.kind == DIED:
            parts.append(f"rank {one.rank} {one.message} when it joined.")
        else:
            parts += raised_words([one])
    limit = next(
        filter(None, (on_limit_of_processes(f"{one.kind}: {one.message}") for one in failed)), ""
    )
    if limit:
        parts.append(f"{limit} Then {again}.")
        return f"The process group could not be built: {chr(10).join(parts)}"
    if missing and not own:
        parts.append(f"{rank_list(missing).capitalize()} had not come.")
    if own and own[0].kind != DIED:
        parts.append(f"Correct what rank {own[0].rank} raised, then {again}.")
    elif not own:
        here = "On several hosts, engines=Ssh(interface=...) names the network on which they reach each other"
        limits = f"Ranks wait {patience:g} s for each other, and then {connecting:g} s for their connections"
        parts.append(f"{limits}. {here}. Then {again}.")
    else:
        parts.append(f"{again.capitalize()}; with fewer ranks, if memory is short.")
    return f"The process group could not be built: {chr(10).join(parts)}"
