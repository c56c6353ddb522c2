"""The groups of a job, from what its ranks have recorded.

Runs in the command's process, called by command.py and gathering.py. Each rank lists its own
groups, and gloo does not say who is in them: then those are members that have called something in
it, and in the world all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distlab.arguments import refuse
from distlab.errors import DataError
from distlab.scripts.explaining.kept import GroupRecord, RankRecord
from distlab.words import rank_list

MOST_RANKS = 100_000  # of a job: more are a mistake, and would be listed one by one
WORLD = "0"  # the name of the group of all ranks, in messages and reports


@dataclass
class Group:
    """A group of the job.

    Attributes:
        name: as messages have it; WORLD for the group of all ranks.
        members: its ranks, in their order.
        is_listed: whether a dump lists the members; if not, there may be more of them.
        records: what its members have recorded of it, by rank.
        is_numbered: whether equal numbers on two ranks mean one collective.
    """

    name: str
    members: tuple[int, ...] = ()
    is_listed: bool = False
    records: dict[int, GroupRecord] = field(default_factory=dict)
    is_numbered: bool = True

    @property
    def is_vague(self) -> bool:
        """Whether only one of its members is known, which cannot be all."""
        return self.name != WORLD and not self.is_listed and len(self.members) == 1

    def words(self) -> str:
        """The group, in a sentence."""
        if self.name == WORLD:
            return "the default group"
        if self.is_vague:
            return f"group {self.name}"
        return f"the group of {rank_list(self.members)}"


@dataclass(frozen=True)
class Job:
    """What is known of a job.

    Attributes:
        ranks: what is kept of each dump, by rank.
        groups: its groups, by name.
        world_size: how many ranks it has, as far as the dumps show.
        is_size_known: whether a dump, or a person, says how many.
    """

    ranks: Mapping[int, RankRecord]
    groups: Mapping[str, Group]
    world_size: int
    is_size_known: bool

    @property
    def has_forgotten(self) -> bool:
        """Whether the recorder of any rank has forgotten calls, because its buffer was full."""
        return any(record.lost for record in self.ranks.values())

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks of which there is no dump."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.ranks)

    def group_of(self, rank: int, record: GroupRecord) -> Group:
        """The group of which a rank has recorded this."""
        for group in self.groups.values():
            if group.records.get(rank) is record:
                return group
        raise KeyError(record.name)


def job_of(ranks: Mapping[int, RankRecord], world_size: int | None = None) -> Job:
    """The job whose ranks have recorded this.

    Args:
        ranks: what is kept of each dump, by rank.
        world_size: how many ranks the job has, if a person says so.
    """
    size, is_known = _world_size(ranks, world_size)
    by_members: dict[tuple[str, tuple[int, ...]], Group] = {}
    for rank, of_rank in sorted(ranks.items()):
        for record in of_rank.groups.values():
            if not record.sequences and not record.begun and not record.members:
                continue
            members = record.members
            if record.is_world:
                members = tuple(range(size))
            group = by_members.setdefault((record.name, members), Group(record.name, members))
            group.records[rank] = record
            group.is_numbered = group.is_numbered and not record.has_shifted
            group.is_listed = group.is_listed or bool(record.members)
            if record.is_world:
                group.name = WORLD
    groups: dict[str, Group] = {}
    for group in by_members.values():
        if not group.members:
            group.members = tuple(sorted(group.records))
        if group.name in groups:  # groups that were split off may share a name
            group.name = f"{group.name} of {rank_list(group.members)}"
        groups[group.name] = group
    return Job(ranks, groups, size, is_known)


def _world_size(ranks: Mapping[int, RankRecord], given: int | None) -> tuple[int, bool]:
    """How many ranks a job has, and whether that is known."""
    least = max(ranks, default=-1) + 1
    listed = 0
    shown = 0
    for of_rank in ranks.values():
        for record in of_rank.groups.values():
            least = max(least, max(record.members, default=-1) + 1)
            if record.is_world:
                listed = max(listed, len(record.members))
                shown = max(shown, record.size)
    size = max(least, listed, shown)
    if size > MOST_RANKS:
        raise DataError(f"The dumps name rank {size - 1}, but no job has more than {MOST_RANKS}.")
    if given is None:
        return size, bool(listed or shown)
    if not size <= given <= MOST_RANKS:
        rule = f"the number of all ranks of the job, at most {MOST_RANKS}"
        advice = f"The dumps show rank {size - 1}, so there are at least {size} ranks."
        refuse("--world-size", rule, given, advice)
    return given, True


def own_rank(record: RankRecord) -> int | None:
    """The rank of a dump, as its groups show it; None if they do not.

    A rank that is alone in a group, or that has sent or received a message, is known by that.
    """
    for group in record.groups.values():
        if len(group.members) == 1:
            return group.members[0]
        for is_send, source, receiver in group.begun:
            own = source if is_send else receiver
            if own < len(group.members):
                return group.members[own]
            if group.is_world and not group.members:
                return own
    return None
