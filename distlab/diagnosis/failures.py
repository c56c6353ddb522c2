"""What failed on the ranks of a cell, as one error with a message that a learner can act on.

No process is started, ended or asked here. Runs on the notebook's kernel, called by failed_cell.py
and runs.py, and by joining.py beside it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from distlab.diagnosis.advice import advice_for
from distlab.diagnosis.afterwards import EndedWithGroup
from distlab.diagnosis.lines import where, with_text
from distlab.errors import MismatchError, RankError
from distlab.wire.messages import CallRecord, Failure, NewGroup, States
from distlab.wire.source import Line
from distlab.words import grouped, rank_list

# of gloo's and of torch's stores
TIMED_OUT = re.compile("[Tt]imed out|[Ww]ait timeout|Timeout waiting")
RUN_CHECKED = (
    "Run it again with check=True (%%px --check): it compares the calls before data moves, and "
    "names the one that does not match."
)
NOT_COMPARED = (
    "What torch begins in C++ is not compared: functional collectives, which DTensor uses, and the "
    "gradients and buffers that DDP sends by itself."
)
INIT = "init_process_group"
LEFT_FOR_OWN = "left the cluster's process group to make another one"
GROUP_IS_REBUILT = (
    "The process group is rebuilt and variables are kept: change the cell and run it again."
)


def rank_error(
    failures: Sequence[Failure], targets: Sequence[int], rebuilt: bool, gone: str, cause: str = ""
) -> RankError:
    """One error for all that the ranks of a cell raised: culprits first, then the others.

    Args:
        failures: what each rank raised that failed.
        targets: the ranks that ran the cell.
        rebuilt: whether the group was rebuilt afterwards.
        gone: what was lost with the old group, in sentences.
        cause: why ranks could not go on if none is at fault.
    """
    culprits = _causes(failures)
    consequences = [failed for failed in failures if failed not in culprits]
    parts = [*raised_words(culprits), *_advice(cause, culprits)]
    if not parts:
        parts += raised_words(consequences)
    elif consequences:
        parts.append(_words_of_consequences(consequences))
    parts += handled_words(failures)
    finished = _finished(targets, failures)
    if finished:
        parts.append(f"{rank_list(finished).capitalize()} finished.")
    if rebuilt:
        parts.append(f"{GROUP_IS_REBUILT} {gone}".rstrip())
    return RankError("\n".join(parts), (*culprits, *consequences), finished)


def _advice(cause: str, culprits: Sequence[Failure]) -> list[str]:
    """What is known of the cause, and what to do about what ranks raised, each sentence once."""
    words = []
    if cause:
        words.append(cause)
    for one in culprits:
        advice = advice_for(one)
        if advice and advice not in words:
            words.append(advice)
    return words


def _causes(failures: Sequence[Failure]) -> list[Failure]:
    """The failures that are a cause.

    Where none is at fault, a wait that timed out counts as one: it has closed the others'
    connections.
    """
    at_fault = [failed for failed in failures if not failed.consequence]
    if at_fault:
        return at_fault
    return [failed for failed in failures if TIMED_OUT.search(failed.message)]


def _words_of_consequences(consequences: Sequence[Failure]) -> str:
    """The ranks that only waited for others, with their lines."""
    ranks_by_lines = grouped((failed.lines, failed.rank) for failed in consequences)
    places = []
    for lines, ranks in ranks_by_lines.items():
        if lines:
            places.append(where(ranks, lines))
    who = rank_list([failed.rank for failed in consequences])
    waited = f"{who} waited in communication and could not go on"
    if not places:
        return f"{waited}."
    return "\n".join([f"{waited}:", *places])


def _finished(targets: Sequence[int], failures: Sequence[Failure]) -> tuple[int, ...]:
    """The ranks of a cell that have not failed."""
    finished = set(targets) - {one.rank for one in failures}
    return tuple(rank for rank in targets if rank in finished)


def groups_error(
    words: str,
    made: Mapping[int, NewGroup],
    raised: Sequence[Failure],
    targets: Sequence[int],
    ended: EndedWithGroup,
) -> RankError:
    """The error for ranks that make different groups.

    It has the same words, whichever rank saw the difference first and raised.

    Args:
        words: what each rank makes.
        made: the groups that differ, by rank.
        raised: what the ranks raised.
        targets: the ranks that ran the cell.
        ended: what ended with the old group.
    """
    parts = [f"some ranks raised {MismatchError.__name__}: {words}"]
    places = grouped((made[rank].line, rank) for rank in sorted(made))
    for line, ranks in places.items():
        if line is not None:
            parts.append(where(ranks, [with_text(line)]))
    # whether any group was built depends on which rank was first
    gone = replace(ended, subgroups=True)
    parts.append(f"{GROUP_IS_REBUILT} {gone.words()}")
    culprits = [failed for failed in raised if not failed.consequence]
    consequences = [failed for failed in raised if failed.consequence]
    finished = _finished(targets, raised)
    return RankError("\n".join(parts), (*culprits, *consequences), finished)


def raised_words(raised: Sequence[Failure]) -> Iterator[str]:
    """What ranks raised, each with the learner's lines; those that read the same together."""
    alike = grouped(((_error_words(one), one.lines), one.rank) for one in raised)
    for (what, lines), ranks in alike.items():
        yield f"{rank_list(ranks)} raised {what}\n{where(ranks, lines)}".rstrip()


def _error_words(raised: Failure) -> str:
    """An exception as Python writes it: "ValueError: no", or "ValueError" without a text."""
    if not raised.message:
        return raised.kind
    return f"{raised.kind}: {raised.message}"


def handled_words(raised: Sequence[Failure]) -> Iterator[str]:
    """Errors that ranks were handling when they raised others in communication, with their lines.

    A rank that communicates in a `finally` does so.
    """
    own = []
    for one in raised:
        if one.handled is not None:
            own.append(((_error_words(one.handled), one.handled.lines), one.rank))
    for (what, lines), ranks in grouped(own).items():
        were = "were" if len(ranks) > 1 else "was"
        words = f"{rank_list(ranks)} had raised {what} before, and {were} handling it"
        yield f"{words}\n{where(ranks, lines)}".rstrip()


def words_of_destroyed(states: States) -> str:
    """Which ranks have destroyed the process group, or left it for their own; "" if none has."""
    ends = []
    for rank, state in states.items():
        if state.destroyed is not None:
            ends.append((state.destroyed.op == INIT, rank))
    words = []
    for is_for_own, ranks in grouped(ends).items():
        what = LEFT_FOR_OWN if is_for_own else "destroyed the process group"
        words.append(f"{rank_list(ranks)} {what}")
        lines = grouped((_last_line(states[rank].destroyed), rank) for rank in ranks)
        for line, of_line in lines.items():
            if line is not None:
                words.append(where(of_line, [with_text(line)]))
    return "\n".join(words)


def _last_line(call: CallRecord | None) -> Line | None:
    """The learner's innermost line that led to a call."""
    return call.lines[-1] if call is not None and call.lines else None


def about_checks(is_pythons: bool, was_checked: bool) -> list[str]:
    """What to say of checked mode where gloo ended a rank and nobody knows which calls differ.

    Args:
        is_pythons: whether a function of torch.distributed was under way, which checked mode
            compares.
        was_checked: whether the cell ran in checked mode.
    """
    words = []
    if not was_checked:
        words.append(RUN_CHECKED)
    if not is_pythons:
        words.append(NOT_COMPARED)
    return words
