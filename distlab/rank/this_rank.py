"""Which rank this process is.

Runs on every rank. group.py sets it when the rank joins a group or builds it again, and world.py
when the learner's own group takes the place of one that gives way; everything else only reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

from distlab.wire.rendezvous import Meeting


@dataclass
class ThisRank:
    """Which rank of which group this process is; one object a process, `THIS_RANK`.

    The environment has the rank and the world size as well, but a learner may change it.

    Attributes:
        rank: the number of this rank in the cluster.
        world_size: the number of ranks of the world that it is in: those of the cluster, but for a
            comparison, which also has smaller worlds.
        meeting: where this generation of the group has met; None before the first one. Names of
            groups repeat in each generation, and the meeting's name does not.
        gives_way: whether the group is the cluster's, which gives way to one that the learner
            makes.
        rank_at: the ranks of the cluster in a world that the learner has made, by their numbers in
            it; None in the cluster's own. Empty where nobody knows.
        world: a name of that world, the same on its ranks, and no other world's; "" for the
            cluster's own, and for one that has not met at the cluster's store.
        backend: the backend of all groups that a person's program makes, whatever it asks for; ""
            for those that it asks for.
    """

    rank: int = 0
    world_size: int = 1
    meeting: Meeting | None = None
    gives_way: bool = False
    rank_at: tuple[int, ...] | None = None
    world: str = ""
    backend: str = ""

    @property
    def generation(self) -> str:
        """The name of this generation of the group, which is the same on every rank."""
        return "" if self.meeting is None else self.meeting.name


THIS_RANK = ThisRank()
