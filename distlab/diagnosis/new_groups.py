"""What ranks make with new_group: what a rank that makes a group needs, and groups that differ.

Pure functions. Runs on the notebook's kernel, called by proof.py and cell.py; on ranks by groups.py.
"""

from collections.abc import Mapping, Sequence

from distlab.diagnosis.matching import by_value
from distlab.diagnosis.needs import Need
from distlab.wire.messages import NewGroup, RankStatus
from distlab.words import grouped, rank_list

RULE_OF_GROUPS = (
    "every rank must call new_group, even for a group that it is not in, and in the same order"
)
DIFFERENT_GROUPS = "The ranks do not make the same group"  # how `words_of_groups` begin
MOST_GROUPS = 4  # that are named in one sentence


def need_of_new_group(state: RankStatus, states: Mapping[int, RankStatus]) -> Need | None:
    """The members that have not begun to make this group, or make another one in its place."""
    call = state.call
    begun = {r: _made(states[r], call.group) for r in call.members if r in states}
    missing = tuple(r for r, group in begun.items() if group is None and r != state.rank)
    if any(call.sequence and states[r].groups > call.sequence for r in missing):
        return None  # it has made this group, which it no longer remembers
    known = {r: (group,) for r, group in begun.items() if group is not None}
    clash = words_of_groups(differing_groups(known)) or _other_name(
        state, [states[r] for r in missing]
    )
    return Need(missing, clash) if missing or clash else None


def _made(state: RankStatus, name: str) -> NewGroup | None:
    """The group of this name that a rank has made, or makes; None if it does not, or no longer
    remembers it.
    """
    return next((group for group in reversed(state.made) if group.name == name), None)


def _other_name(state: RankStatus, others: Sequence[RankStatus]) -> str:
    """A sentence about members that make the same group alone under another name; "" for anything
    else.
    """
    call = state.call
    own = _made(state, call.group)
    alike = [
        s for s in others if s.call and s.call.kind == call.kind and s.call.members == call.members
    ]
    theirs = [_made(other, other.call.group) for other in alike]
    within = {group.rank: group.within for group in (own, *theirs) if group is not None}
    if len(set(within.values())) < 2:
        return ""
    counts = by_value({rank: str(number) for rank, number in within.items()}, ("is in", "are in"))
    start = f"The members of the group of {rank_list(call.members)} cannot find each other"
    option = "use_local_synchronization=True"
    rule = f"torch names a group with {option} by its members and by how many groups a rank is in"
    return f"{start}: {rule}, and {counts}. Leave {option} out, and make every group on every rank."


def differing_groups(made: Mapping[int, Sequence[NewGroup]]) -> dict[int, NewGroup]:
    """What the ranks make under the first number under which they do not make the same group; empty
    if there is none.

    Ranks that make a group of themselves alone, each under the same number, do no harm.

    Args:
        made: by rank, the groups that it has made.
    """
    by_number: dict[int, dict[int, NewGroup]] = {}
    for rank, groups in made.items():
        for group in groups:
            if group.name.isdigit():
                by_number.setdefault(int(group.name), {})[rank] = group
    for _, groups_of_number in sorted(by_number.items()):
        members = {group.members for group in groups_of_number.values()}
        if len(members) > 1 and max(map(len, members)) > 1:
            return groups_of_number
    return {}


def words_of_groups(groups: Mapping[int, NewGroup]) -> str:
    """What each rank makes, and where, of groups that differ under one number; "" without any.

    Args:
        groups: by rank.
    """
    if not groups:
        return ""
    number = next(iter(groups.values())).name
    alike = grouped((_group_words(group), rank) for rank, group in sorted(groups.items()))
    ordered = sorted(alike.items(), key=lambda item: (len(item[1]), item[1]))
    makes = [
        f"{rank_list(ranks)} {'make' if len(ranks) > 1 else 'makes'} {what}"
        for what, ranks in ordered
    ]
    more = f", and {len(makes) - MOST_GROUPS} more" if len(makes) > MOST_GROUPS else ""
    start = f"{DIFFERENT_GROUPS} in their new_group call number {number}"
    return f"{start}: {', '.join(makes[:MOST_GROUPS])}{more}, but {RULE_OF_GROUPS}."


def _group_words(group: NewGroup) -> str:
    where = f" ({group.line.position})" if group.line else ""
    return f"one of {rank_list(group.members)}{where}"
