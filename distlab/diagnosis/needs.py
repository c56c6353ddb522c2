"""A rank that waits, with its call, and what it needs to go on.

Plain data, which never travels. Made on the notebook's kernel by proof.py and its rules for
messages and new groups (point_to_point.py, dropped_work.py, new_groups.py); read by stuck.py,
cell.py and failed_cell.py.
"""

from dataclasses import dataclass

from distlab.wire.messages import CallRecord, RankStatus, States


@dataclass(frozen=True)
class Waiting:
    """A rank, or one of its threads, that waits in a call.

    A status has a call only where something waits. Whoever needs the call asks `waiter_in` or
    `waiting_ranks` once, and then has both.

    Attributes:
        state: the status.
        call: the call in it.
    """

    state: RankStatus
    call: CallRecord

    @property
    def rank(self) -> int:
        """The rank that waits."""
        return self.state.rank


def waiter_in(state: RankStatus) -> Waiting | None:
    """The status with its call, or None if nothing waits there."""
    if state.call is None:
        return None
    return Waiting(state, state.call)


def waiting_ranks(states: States) -> dict[int, Waiting]:
    """The ranks that wait in a call, by rank, in the order of `states`."""
    found = {}
    for rank, state in states.items():
        if state.call is not None:
            found[rank] = Waiting(state, state.call)
    return found


def newest_collectives(state: RankStatus) -> list[CallRecord]:
    """The newest collective of each group that a rank has called."""
    newest = {}
    for call in state.history:  # those of one group are in order
        newest[call.group] = call
    return list(newest.values())


@dataclass(frozen=True)
class Need:
    """What a waiting rank needs.

    Attributes:
        ranks: the ranks of which it needs all or any, as its call says. The proof does not ask
            which: it holds only where none of the cluster's ranks can go on.
        clash: a sentence that says why it can never get it; "" if it only has to come.
    """

    ranks: tuple[int, ...] = ()
    clash: str = ""
