"""What ranks make with new_group: what a rank that makes a group needs, and groups that differ.

No process is asked. Runs on the notebook's kernel, called by proof.py and failed_cell.py, and on
ranks, called by groups.py.
"""

from collections.abc import Mapping, Sequence

from distlab.diagnosis.matching import by_value, fewest_first
from distlab.diagnosis.needs import Need, Waiting
from distlab.wire.messages import NewGroup, RankStatus, States
from distlab.words import grouped, rank_list, ranks_and_verb

RULE_OF_GROUPS = (
    "every rank must call new_group, even for a group that it is not in, and in the same order"
)
DIFFERENT_GROUPS = "The ranks do not make the same group"  # how `words_of_groups` begins
MOST_GROUPS = 4  # that are named in one sentence
LOCAL_OPTION = "use_local_synchronization=True"


def need_of_new_group(waiter: Waiting, states: States) -> Need | None:
    """The members that have not begun to make this group, or make another one in its place."""
    call = waiter.call
    begun = {}
    missing = []
    for rank in call.members:
        if rank not in states:
            continue
        group = _made(states[rank], call.group)
        if group is not None:
            begun[rank] = [group]
        elif rank != waiter.rank:
            missing.append(states[rank])
    if call.sequence and any(state.groups > call.sequence for state in missing):
        return None  # that rank has made this group, and no longer remembers it
    clash = words_of_groups(differing_groups(begun))
    if not clash:
        clash = _words_of_other_name(waiter, missing)
    if not missing and not clash:
        return None
    return Need(tuple(state.rank for state in missing), clash)


def _made(state: RankStatus, name: str) -> NewGroup | None:
    """The newest group of this name that a rank has made or makes; None if it remembers none."""
    for group in reversed(state.made):
        if group.name == name:
            return group
    return None


def _words_of_other_name(waiter: Waiting, others: Sequence[RankStatus]) -> str:
    """A sentence about members that make the same group alone under another name, or "".

    Args:
        waiter: a rank that makes a group.
        others: the members that have not made one of this name.
    """
    call = waiter.call
    made = [_made(waiter.state, call.group)]
    for other in others:
        theirs = other.call
        if theirs is None or theirs.kind != call.kind:
            continue
        if theirs.members == call.members:
            made.append(_made(other, theirs.group))
    within = {}
    for group in made:
        if group is not None:
            within[group.rank] = str(group.within)
    if len(set(within.values())) < 2:
        return ""
    counts = by_value(within, ("is in", "are in"))
    return (
        f"The members of the group of {rank_list(call.members)} cannot find each other: "
        f"torch names a group with {LOCAL_OPTION} by its members and by how many groups a rank "
        f"is in, and {counts}. Leave {LOCAL_OPTION} out, and make every group on every rank."
    )


# --- groups that differ ---


def differing_groups(made: Mapping[int, Sequence[NewGroup]]) -> dict[int, NewGroup]:
    """What the ranks make under the first number under which they do not make the same group.

    Ranks that make a group of themselves alone, each under the same number, do no harm.

    Args:
        made: by rank, the groups that it has made.

    Returns:
        The groups by rank; empty if the ranks make the same groups.
    """
    by_number: dict[int, dict[int, NewGroup]] = {}
    for rank, groups in made.items():
        for group in groups:
            if group.name.isdigit():  # others are made by their members only
                by_number.setdefault(int(group.name), {})[rank] = group
    for number in sorted(by_number):
        of_ranks = by_number[number]
        different = {group.members for group in of_ranks.values()}
        largest = max(different, key=len)
        if len(different) > 1 and len(largest) > 1:
            return of_ranks
    return {}


def words_of_groups(groups: Mapping[int, NewGroup]) -> str:
    """A sentence that says what each rank makes, and where, or "" without any group.

    Args:
        groups: by rank, groups that differ under one number.
    """
    if not groups:
        return ""
    first, *_ = groups.values()
    ranks_by_group = grouped((_group_words(groups[rank]), rank) for rank in sorted(groups))
    makes = []
    for group, ranks in sorted(ranks_by_group.items(), key=fewest_first):
        makes.append(f"{ranks_and_verb(ranks, 'makes', 'make')} {group}")
    listed = ", ".join(makes[:MOST_GROUPS])
    if len(makes) > MOST_GROUPS:
        listed += f", and {len(makes) - MOST_GROUPS} more"
    start = f"{DIFFERENT_GROUPS} in their new_group call number {first.name}"
    return f"{start}: {listed}, but {RULE_OF_GROUPS}."


def _group_words(group: NewGroup) -> str:
    """A group by its members, and where it was made: "one of ranks 0-1 (line 3)"."""
    words = f"one of {rank_list(group.members)}"
    if group.line is None:
        return words
    return f"{words} ({group.line.position})"
