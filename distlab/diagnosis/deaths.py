"""The error for a cell in which processes of ranks ended, and where they were.

No process is asked; endings.py says how one ended. Runs on the notebook's kernel, called by
failed_cell.py, ranks.py and generation.py.
"""

from collections.abc import Mapping, Sequence

from distlab.diagnosis.endings import Ending
from distlab.diagnosis.failures import where, with_text
from distlab.errors import RankDied
from distlab.wire.messages import Failure
from distlab.wire.source import Line, process_of_cell
from distlab.words import grouped, rank_list, ranks_and_verb

DIED = "RankDied"  # the kind of a failure that is the end of a process


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
        shown.append(Line(line.number, text, line.place))
    return tuple(shown)


def rank_died(
    died: Mapping[int, Ending],
    others: Sequence[int],
    again: str,
    host_lost: bool,
    last_lines: Mapping[int, str],
    gone: str,
    lines: Mapping[int, tuple[Line, ...]],
    then: Sequence[str] = (),
) -> RankDied:
    """The error for ranks whose processes ended in a cell.

    Args:
        died: how, by rank.
        others: the ranks that are alive.
        again: what to do for new ranks; "" if they come by themselves.
        host_lost: whether a host of theirs cannot be reached any more.
        last_lines: the end of what they wrote, by rank, kept as the failures' traceback.
        gone: what was lost with them, in sentences.
        lines: where they were, by rank, as far as that is known.
        then: what is known of the others at that time, and what to do to learn more.
    """
    if host_lost:
        advice = "cluster.heal() and the next cell for all ranks try the host again."
        kept = _kept_until_host_is_back(others)
    elif again:
        advice = f"{_why_incomplete(died)}: {again}."
        kept = ""
    else:
        advice = f"The next cell starts {_new_ranks(len(died))}, and rebuilds the process group."
        kept = _kept(others)
    failures = []
    for rank in _causes_first(died):
        output = last_lines.get(rank, "")
        how = died[rank].words()
        failures.append(Failure(rank, DIED, how, lines.get(rank, ()), traceback=output))
    words = " ".join(part for part in (advice, kept, gone) if part)
    message = "\n".join([f"{died_words(died)}.", *_places(failures), *then, words])
    return RankDied(message, tuple(failures), tuple(others))


def _places(failures: Sequence[Failure]) -> list[str]:
    """The lines in which ranks died; those of ranks that died in the same ones once."""
    alike = grouped((failed.lines, failed.rank) for failed in failures if failed.lines)
    return [where(ranks, lines) for lines, ranks in alike.items()]


def _causes_first(died: Mapping[int, Ending]) -> list[int]:
    """The ranks that died by themselves, and then those that mpiexec ended because of them."""
    causes = [rank for rank in sorted(died) if not died[rank].by_mpiexec]
    ended = [rank for rank in sorted(died) if died[rank].by_mpiexec]
    return causes + ended


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
    alike = grouped((died[rank], rank) for rank in sorted(died) if not died[rank].by_mpiexec)
    parts = []
    for ending, ranks in alike.items():
        parts.append(f"{rank_list(ranks)} {ending.words(len(ranks))}")
    return "; ".join(parts)
