"""The error for a cell in which processes of ranks ended, and where they were.

No process is asked; endings.py says how one ended. Runs on the notebook's kernel, called by
failed_cell.py, ranks.py and generation.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from distlab.diagnosis.endings import Ending
from distlab.diagnosis.lines import where, with_text
from distlab.errors import RankDied
from distlab.wire.messages import Failure
from distlab.wire.source import Line, process_of_cell
from distlab.words import grouped, rank_list, ranks_and_verb

DIED = "RankDied"  # the kind of a failure that is the end of a process


@dataclass(frozen=True)
class DeadRank:
    """A rank whose process ended in a cell.

    Attributes:
        rank: the rank.
        ending: how its process ended.
        lines: where it was then, as far as that is known.
        output: the end of what it wrote, which becomes the failure's traceback.
    """

    rank: int
    ending: Ending
    lines: tuple[Line, ...] = ()
    output: str = ""

    def failure(self) -> Failure:
        """The end of the process as a failure of its rank."""
        return Failure(
            self.rank,
            DIED,
            self.ending.words(),
            self.lines,
            traceback=self.output,
            status=self.ending.status,
        )


def lines_of_dead(lines: Sequence[Line], pid: int, source: str) -> tuple[Line, ...]:
    """Where a process was when it ended, with the text of the lines, as the notebook shows them.

    Args:
        lines: as wire/faults.py reads them: those of cells have a file that only the process had.
        pid: its number.
        source: the text of the %%px cell that it ran, its first line included; "" for a function.
    """
    texts = source.splitlines()
    shown = []
    own_cell = ""  # the file of the cell that it ran: the outermost of a cell
    for line in lines:
        if process_of_cell(line.file) != pid:
            shown.append(with_text(line))
            continue
        own_cell = own_cell or line.file
        text = ""  # unknown of a function from an earlier cell
        if line.file == own_cell and line.number <= len(texts):
            text = texts[line.number - 1].removeprefix("%px ").strip()
        shown.append(Line(line.number, text, line.function))
    return tuple(shown)


def rank_died(
    dead: Sequence[DeadRank],
    others: Sequence[int],
    again: str,
    host_lost: bool,
    gone: str,
    then: Sequence[str] = (),
) -> RankDied:
    """The error for ranks whose processes ended in a cell.

    Args:
        dead: these ranks.
        others: the ranks that are alive.
        again: what to do for new ranks; "" if they come by themselves.
        host_lost: whether a host of theirs cannot be reached any more.
        gone: what was lost with them, in sentences.
        then: what is known of the others at that time, and what to do to learn more.
    """
    died = {one.rank: one.ending for one in dead}
    if host_lost:
        advice = "cluster.heal() and the next cell for all ranks try the host again."
        kept = _kept_until_host_is_back(others)
    elif again:
        advice = f"{_why_incomplete(died)}: {again}."
        kept = ""
    else:
        advice = f"The next cell starts {_new_ranks(len(died))}, and rebuilds the process group."
        kept = _kept(others)
    words = " ".join(part for part in (advice, kept, gone) if part)
    ordered = _causes_first(dead)
    message = "\n".join([f"{died_words(died)}.", *_where_they_died(ordered), *then, words])
    return RankDied(message, tuple(one.failure() for one in ordered), tuple(others))


def _causes_first(dead: Iterable[DeadRank]) -> list[DeadRank]:
    """The ranks that died by themselves, and then those that mpiexec ended because of them."""
    causes = []
    ended = []
    for one in sorted(dead, key=lambda one: one.rank):
        if one.ending.by_mpiexec:
            ended.append(one)
        else:
            causes.append(one)
    return causes + ended


def _where_they_died(dead: Iterable[DeadRank]) -> list[str]:
    """The lines in which ranks died; those of ranks that died in the same ones once."""
    ranks_by_lines = grouped((one.lines, one.rank) for one in dead if one.lines)
    return [where(ranks, lines) for lines, ranks in ranks_by_lines.items()]


def _kept_until_host_is_back(others: Sequence[int]) -> str:
    """What the ranks keep whose host can be reached; "" if there are none."""
    if not others:
        return ""
    kept = ranks_and_verb(others, "keeps its", "keep their").capitalize()
    before = f"until then, ranks={list(others)} can use them without a group"
    return f"{kept} variables; {before}."


def _kept(others: Sequence[int]) -> str:
    """What the ranks keep that are alive; "" if there are none."""
    if not others:
        return ""
    return ranks_and_verb(others, "keeps its own", "keep theirs").capitalize() + "."


def _new_ranks(number: int) -> str:
    """What starts in the place of this many ranks."""
    if number > 1:
        return "new ones in their places, without their variables"
    return "a new one in its place, without its variables"


def _why_incomplete(died: Mapping[int, Ending]) -> str:
    """Why a cluster cannot go on without the ranks that died, in words."""
    ended = [rank for rank, ending in died.items() if ending.by_mpiexec]
    if not ended:
        return "The cluster is incomplete"
    rule = "MPI ends a whole program when one of its processes dies"
    return f"{rule}: mpiexec has ended {rank_list(ended)} too.\nAll variables are lost"


def died_words(died: Mapping[int, Ending]) -> str:
    """Which ranks died and how, in words; those that died alike together.

    Ranks that mpiexec ended because of another one are left out.

    Args:
        died: how, by rank.
    """
    causes = []
    for rank in sorted(died):
        if not died[rank].by_mpiexec:
            causes.append((died[rank], rank))
    parts = []
    for ending, ranks in grouped(causes).items():
        parts.append(f"{rank_list(ranks)} {ending.words(len(ranks))}")
    return "; ".join(parts)
