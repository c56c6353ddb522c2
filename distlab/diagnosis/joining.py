"""Why ranks could not join a process group.

No process is asked. Runs on the notebook's kernel, called by generation.py.
"""

from collections.abc import Sequence

from distlab.diagnosis.advice import on_limit_of_processes
from distlab.diagnosis.deaths import DIED
from distlab.diagnosis.failures import raised_words
from distlab.wire.messages import Failure
from distlab.words import rank_list


def waited_to_join(failed: Failure) -> bool:
    """Whether a rank that could not join a group only waited for the others."""
    if failed.consequence or failed.kind == "DistStoreError":
        return True
    return "timed out" in failed.message.lower()


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
    again = "start the cluster again" if is_first else "call cluster.restart() for new ranks"
    own = [one for one in failed if not waited_to_join(one)]
    parts = _first_failure(own or failed)
    limit = _limit_of_processes(failed)
    if limit:
        parts.append(f"{limit} Then {again}.")
    elif not own:
        if missing:
            parts.append(f"{rank_list(missing).capitalize()} had not come.")
        parts.append(
            f"Ranks wait {patience:g} s for each other, and then {connecting:g} s for their "
            "connections. On several hosts, engines=Ssh(interface=...) names the network on which "
            f"they reach each other. Then {again}."
        )
    elif own[0].kind == DIED:
        parts.append(f"{again.capitalize()}; with fewer ranks, if memory is short.")
    else:
        parts.append(f"Correct what rank {own[0].rank} raised, then {again}.")
    reasons = "\n".join(parts)
    return f"The process group could not be built: {reasons}"


def _first_failure(failed: Sequence[Failure]) -> list[str]:
    """The first failure in words, in a list; an empty list if there is none."""
    if not failed:
        return []
    first = failed[0]
    if first.kind == DIED:
        return [f"rank {first.rank} {first.message} when it joined."]
    return [*raised_words([first])]


def _limit_of_processes(failed: Sequence[Failure]) -> str:
    """What to do if the system has refused any rank a process or a thread; "" if it has not."""
    for one in failed:
        advice = on_limit_of_processes(f"{one.kind}: {one.message}")
        if advice:
            return advice
    return ""
