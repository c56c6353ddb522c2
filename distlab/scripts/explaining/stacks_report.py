"""What the stacks of a job's processes show, in words, and what they cannot show.

Run by `distlab explain` in its own process, called by command.py and stacks_of_processes.py. Stacks
are seen at one moment, and show neither the group of a call nor, without arguments, its peer. So
nothing is proven here: the words say who is where, and who is not where the others are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distlab.diagnosis import report
from distlab.diagnosis.lines import position_words
from distlab.errors import DataError
from distlab.scripts.explaining.files import DumpFile
from distlab.scripts.explaining.stacks import Stack, by_rank, read_stacks
from distlab.scripts.explaining.stacks_where import innermost_values, is_agent, status_of
from distlab.wire import messages
from distlab.wire.messages import CallRecord, RankStatus
from distlab.words import grouped, rank_list, ranks_and_verb

LIMITS = (
    "Stacks show one moment, and neither the groups of these calls nor what came before them. "
    "Look twice, some seconds apart: what has not moved may be stuck."
)
WAITS_IN_CPP = (
    'Who is "not in a call" may compute, read or sleep, or wait in C++, as in work.wait(), which '
    "leaves no frame."
)
RECORDER = (
    "The dumps of torch's flight recorder show groups and earlier calls: "
    "distlab explain reads them, too."
)
NOTHING = (
    "{name} must hold stacks as `py-spy dump` or Python's faulthandler writes them, "
    "and none was found in it."
)
ONLY_AGENTS = (
    "These are stacks of torchrun, which starts the ranks but is not a rank itself. "
    "The ranks are its child processes, and pgrep -P PID lists them."
)
# the first bytes of a dump of the flight recorder: a pickle's, and those of JSON
NOT_STACKS = (b"\x80", b"{", b"[{")
MOST_VALUES = 3  # of variables that differ


def with_stacks(files: Iterable[DumpFile]) -> dict[DumpFile, list[Stack]]:
    """The stacks in each of these files; empty if there are none, as where the files are dumps.

    Raises:
        DataError: some of the files hold stacks, and another one that was named does not.
    """
    found: dict[DumpFile, list[Stack]] = {}
    without: list[DumpFile] = []
    for file in files:
        stacks = _stacks_in(file)
        if stacks:
            found[file] = stacks
        elif file.is_named:
            without.append(file)
    if found and without:
        raise DataError(NOTHING.format(name=without[0].path))
    return found


def _stacks_in(file: DumpFile) -> list[Stack]:
    """The stacks in a file; none in a dump, which is not read."""
    with open(file.path, "rb") as opened:
        begin = opened.read(len(NOT_STACKS[-1]))
        if begin.startswith(NOT_STACKS):
            return []
        content = begin + opened.read()
    return read_stacks(content.decode(errors="replace"))


def of_files(found: Mapping[DumpFile, Sequence[Stack]]) -> str:
    """What the stacks in these files show.

    Raises:
        DataError: none is of a rank.
    """
    stacks: list[Stack] = []
    ranks: list[int | None] = []
    for file, in_file in found.items():
        for stack in in_file:
            if is_agent(stack):
                continue
            rank = stack.rank if file.rank is None else file.rank
            if rank is None and len(in_file) == 1:
                rank = file.rank_of_name
            stacks.append(stack)
            ranks.append(rank)
    return of_ranks(by_rank(stacks, ranks))


def of_ranks(stacks: Mapping[int, Stack], world_size: int = 0) -> str:
    """What the stacks of ranks show.

    Args:
        stacks: by rank.
        world_size: how many ranks the job has; 0 if that is not known.

    Raises:
        DataError: there is none.
    """
    if not stacks:
        raise DataError(ONLY_AGENTS)
    states = {rank: status_of(rank, stack) for rank, stack in stacks.items()}
    paragraphs = [
        " ".join([*_sentences(states), *_missing(states, world_size)]),
        report.table(states),
    ]
    differ = _values_that_differ(stacks)
    if differ:
        paragraphs.append(differ)
    remarks = [LIMITS, RECORDER]
    if any(state.doing == messages.OUTSIDE for state in states.values()):
        remarks.insert(0, WAITS_IN_CPP)
    paragraphs.append("\n".join(remarks))
    return "\n\n".join(paragraphs)


def _sentences(states: Mapping[int, RankStatus]) -> list[str]:
    """Who is in which call, and who is in none."""
    waiting = {rank: state.call for rank, state in states.items() if state.call is not None}
    outside = [rank for rank in states if rank not in waiting]
    by_call = grouped((report.call_words(call), rank) for rank, call in waiting.items())
    sentences = []
    if not waiting:
        sentences.append("No rank is in a call of torch.distributed.")
    elif len(by_call) == 1 and not outside:
        sentences += _all_alike(waiting)
    else:
        for words, ranks in by_call.items():
            sentences.append(f"{_capital(ranks_and_verb(ranks, 'is', 'are'))} in {words}.")
    if waiting:
        sentences += _without(outside, states, list(by_call))
    sentences += _messages_both_ways(waiting)
    return sentences


def _all_alike(waiting: Mapping[int, CallRecord]) -> list[str]:
    """All ranks are in calls that read alike, at one line or at several."""
    first, *_ = waiting.values()
    words = report.call_words(first)
    by_line = grouped((_position(call), rank) for rank, call in waiting.items())
    if len(waiting) == 1:
        return [f"{_capital(rank_list([*waiting]))} is in {words}."]
    all_of_them = "Both ranks are" if len(waiting) == 2 else "All ranks are"
    if len(by_line) == 1:
        return [
            f"{all_of_them} in {words}, at the same line.",
            "So one may be a step ahead, or the calls may belong to different groups; "
            "or the ranks wait for a message that the network has lost.",
        ]
    parts = [f"{rank_list(ranks)} at {position}" for position, ranks in by_line.items()]
    return [f"{all_of_them} in {words}, but at different lines: {', '.join(parts)}."]


def _without(
    outside: Sequence[int], states: Mapping[int, RankStatus], calls: Sequence[str]
) -> list[str]:
    """Who is in none of the calls that the others are in, and where."""
    if not outside:
        return []
    where = "it" if len(calls) == 1 else "any of these calls"
    by_line = grouped((_position_of(states[rank]), rank) for rank in outside)
    sentences = []
    for position, ranks in by_line.items():
        at = f": {'it is' if len(ranks) == 1 else 'they are'} at {position}" if position else ""
        not_in = _capital(ranks_and_verb(ranks, "is", "are"))
        sentences.append(f"{not_in} not in {where}{at}.")
    return sentences


def _messages_both_ways(waiting: Mapping[int, CallRecord]) -> list[str]:
    """Two ranks that both receive from each other, or both send; known with arguments only."""
    sentences = []
    for rank, call in waiting.items():
        peer = call.peer
        if call.kind != messages.MESSAGE or peer is None or peer <= rank:
            continue
        other = waiting.get(peer)
        if other is None or other.kind != messages.MESSAGE or other.peer != rank:
            continue
        if other.is_send == call.is_send:
            does = "sends to" if call.is_send else "waits to receive from"
            sentences.append(f"Each of {rank_list([rank, peer])} {does} the other.")
    return sentences


def _missing(states: Mapping[int, RankStatus], world_size: int) -> list[str]:
    """The ranks without a stack."""
    expected = range(max(world_size, max(states) + 1))
    missing = [rank for rank in expected if rank not in states]
    if not missing:
        return []
    return [f"There is no stack of {rank_list(missing)}."]


def _values_that_differ(stacks: Mapping[int, Stack]) -> str:
    """Whole numbers in the program's functions that differ, such as the number of the step.

    A rank's own numbers differ on every rank, and say nothing: they are left out.
    """
    values = {rank: innermost_values(stack) for rank, stack in stacks.items()}
    names = dict.fromkeys(name for of_rank in values.values() for name in of_rank)
    parts = []
    for name in names:
        known = {rank: of_rank[name] for rank, of_rank in values.items() if name in of_rank}
        by_value = grouped((value, rank) for rank, value in known.items())
        is_own = all(value == rank for rank, value in known.items())
        if 1 < len(by_value) < max(3, len(known)) and not is_own:
            on = [f"{value} on {rank_list(ranks)}" for value, ranks in sorted(by_value.items())]
            parts.append(f"{name} is {', '.join(on)}")
    if not parts:
        return ""
    return f"These variables differ: {'; '.join(parts[:MOST_VALUES])}."


def _position(call: CallRecord) -> str:
    """The line of a call, in words; "" if it is not known."""
    return position_words(call.lines[-1]) if call.lines else "an unknown line"


def _position_of(state: RankStatus) -> str:
    """The line where a rank is, in words; "" if it is not known."""
    return position_words(state.lines[-1]) if state.lines else ""


def _capital(words: str) -> str:
    """Words at the beginning of a sentence."""
    return words[:1].upper() + words[1:]
