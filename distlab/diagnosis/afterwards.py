"""What became of ranks that were late, and of what ended with a group that was rebuilt, in words.

No process is asked. Runs on the notebook's kernel, called by failed_cell.py, freeing.py, ranks.py
and cluster.py, by failures.py beside it, and by shared_cluster.py and compare.py.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distlab.words import rank_list

GROUPS_GONE = "Groups made with dist.new_group, and device meshes, are gone: make them again."
RPC_ENDED = (
    "RPC has ended, and its RRefs and futures with it: call rpc.init_rpc(...) again on every rank."
)
VARIABLES_ARE_KEPT = (
    "Variables are kept and the process group is rebuilt: change the cell and run it again."
)
# the line that says what a person can do next, which is left out where the cluster has ended
NEXT_STEP = re.compile(r"\n.*(process group is rebuilt|rebuilds the process group).*")


@dataclass(frozen=True)
class EndedWithGroup:
    """What ended with a process group that was rebuilt.

    Attributes:
        subgroups: whether groups of dist.new_group did.
        rpc: whether RPC did.
    """

    subgroups: bool = False
    rpc: bool = False

    def words(self) -> str:
        """What it means for the learner, in sentences; "" if nothing ended."""
        sentences = []
        if self.subgroups:
            sentences.append(GROUPS_GONE)
        if self.rpc:
            sentences.append(RPC_ENDED)
        return " ".join(sentences)


def words_of_late(ranks: Sequence[int], timeout: float | None) -> str:
    """The first sentence for ranks that were interrupted.

    Args:
        ranks: the ranks that had not finished; none if the last one finished at that moment.
        timeout: the time limit of the cell, in seconds; None if a person interrupted it.
    """
    if timeout is None:
        if not ranks:
            return "All ranks had finished."
        return f"{rank_list(ranks).capitalize()} had not finished."
    if not ranks:
        return f"the last rank came back only after {timeout:g} s."
    return f"{rank_list(ranks)} did not come back within {timeout:g} s."


def words_of_freeing(
    seconds: float, busy: Sequence[int], replaced: Mapping[int, str], gone: str
) -> str:
    """What happened to the ranks, and what to do now.

    Args:
        seconds: from the start of the cell until its ranks were free.
        busy: ranks that could not be freed.
        replaced: what was lost with ranks that could not be freed, by rank.
        gone: what was lost with the old group, in sentences.
    """
    if busy:
        return f"{rank_list(busy).capitalize()} could not be freed: call cluster.restart()."
    if replaced:
        kept = "Other ranks keep their variables, and the process group is rebuilt."
    else:
        kept = VARIABLES_ARE_KEPT
    freed = f"Freed after {seconds:.1f} s."
    return " ".join([freed, *not_freed(replaced), kept, gone]).rstrip()


def not_freed(replaced: Mapping[int, str]) -> list[str]:
    """A sentence for each rank that could not be freed: who takes its place, and what is lost."""
    sentences = []
    for rank, lost in replaced.items():
        why = f"Rank {rank} could not be freed"
        sentences.append(f"{why}: a new process took its place, {lost}.")
    return sentences


def words_of_loss(variables: Sequence[str]) -> str:
    """What is lost with a rank, in words, with the names of its variables if they are known."""
    lost = "and its variables are lost"
    if not variables:
        return lost
    return f"{lost}: {', '.join(variables)}"
