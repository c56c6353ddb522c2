"""Which rank this process is.

Runs on every rank. group.py sets it when the rank joins a group or builds it again, and world.py
when the learner's own group takes the place of one that gives way; everything else only reads it.
"""

from dataclasses import dataclass


@dataclass
class ThisRank:
    """Which rank of which group this process is; one object a process, `THIS_RANK`.

    The environment has the rank and the world size as well, but a learner may change it.

    Attributes:
        rank: the number of this rank in the cluster.
        world_size: the number of ranks of the cluster.
        generation: the name of this generation of the group, which is the same on every rank. Names
            of groups repeat in each generation.
        gives_way: whether the group was built in the place of one that the learner had destroyed:
            it gives way to the next one that the learner makes.
    """

    rank: int = 0
    world_size: int = 1
    generation: str = ""
    gives_way: bool = False


THIS_RANK = ThisRank()
