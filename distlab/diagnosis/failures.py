"""What failed on the ranks of a cell, as one error with a message that a learner can act on.

No process is started, ended or asked here; lines of files are read. Runs on the notebook's kernel,
called by failed_cell.py, generation.py, freeing.py, ranks.py, cluster.py and predict.py; `where`
also runs on ranks, called by rpc_calls.py.
"""

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from distlab.diagnosis.advice import advice_for
from distlab.errors import MismatchError, RankError
from distlab.wire.messages import Failure, NewGroup, States
from distlab.wire.source import Line, is_learners
from distlab.words import grouped, rank_list

MOST_LINES = 10  # of one rank's traceback
GROUPS_GONE = "Groups made with dist.new_group, and device meshes, are gone: make them again."
RPC_ENDED = (
    "RPC has ended, and its RRefs and futures with it: call rpc.init_rpc(...) again on every rank."
)
FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+, in ')  # in Python's tracebacks
# what Python lists below the text of an exception that has passed through C++
LED_TO_CALLBACK = re.compile(r"\n\nAt:(\n  [^\n]+\(\d+\): [^\n]+)+\n?")
# the place in C++ that raised, and the rank, which is named anyway
PLACE_IN_CPP = re.compile(r"(\[rank\d+\]:)?\[[^\[\]]*\.(cc|cpp|h):\d+\]\s*")
# parts of messages that `readable` replaces, in this order
MEANINGLESS = (
    (PLACE_IN_CPP, ""),
    (re.compile(r'"/__w/pytorch/[^"]*/([^"/]+)":(\d+)'), r"\1:\2"),
    # what the cluster's own keys begin with
    (re.compile(r"(?<![^\s'\"\[(])[^\s'\"\[(]*/group-\d+/(\d+/)*/*"), ""),
    # the address of an object
    (re.compile(r" at 0x[0-9a-f]+>"), ">"),
)
# an end of a connection, and then an arrow between two ends without addresses
ENDS_OF_CONNECTIONS = (
    re.compile(r",?\s{0,2}(remote=)?\[?127\.0\.0\.1\]?:\d+(\$\d+)?"),
    re.compile(r"\s{0,2}\(\s{0,2}<-->\s{0,2}(\[none\])?\s{0,2}\)"),
)
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
VARIABLES_ARE_KEPT = (
    "Variables are kept and the process group is rebuilt: change the cell and run it again."
)
GROUP_IS_REBUILT = (
    "The process group is rebuilt and variables are kept: change the cell and run it again."
)


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


# --- what a rank reports, made readable ---


def made_readable(raised: Failure) -> Failure:
    """What a rank reports of its exception, readable, with source that only the notebook has."""
    handled = None
    if raised.handled is not None:
        handled = made_readable(raised.handled)
    lines = tuple(with_text(line) for line in raised.lines)
    is_torchs = raised.communicated or raised.kind.startswith("Dist")
    message = readable(raised.message, is_torchs)
    return replace(raised, message=message, lines=lines, handled=handled)


def with_text(line: Line) -> Line:
    """A line that a rank has reported, with its text, which the rank may not have."""
    text = line.text or linecache.getline(line.file, line.number).strip()
    return replace(line, text=text)


def readable(message: str, is_torchs: bool) -> str:
    """A message without the parts that mean nothing to its reader.

    These are gloo's source paths, byte-swapped ports, addresses, and what the cluster puts before a
    learner's keys of a store. Ends of a connection without an address go as well, because gloo
    sometimes writes them and sometimes does not. So does what torch writes around an error of a
    Future's callback: that it was one, and all lines that led to it.

    A learner's message may have a million characters in one line: no pattern may begin at each of
    them and look far.

    Args:
        message: the text of an exception.
        is_torchs: whether torch or gloo has written it. In a learner's own text, the address of a
            connection is what the learner wrote.
    """
    message = message.replace("Got the following error when running the callback: ", "")
    message = LED_TO_CALLBACK.sub("", message)
    is_torchs = is_torchs or PLACE_IN_CPP.search(message) is not None
    for pattern, replacement in MEANINGLESS:
        message = pattern.sub(replacement, message)
    if is_torchs:
        for pattern in ENDS_OF_CONNECTIONS:
            message = pattern.sub("", message)
    message, _, _ = message.partition("\nException raised from")
    message = message.strip()
    if "Traceback (most recent call last)" in message:
        return _without_libraries(message)
    return message


def _without_libraries(message: str) -> str:
    """A message that holds another process's traceback, with the learner's lines only.

    A DataLoader's worker is such a process. The lines of libraries tell a learner nothing.
    """
    kept: list[str] = []
    is_kept = True
    for line in message.split("\n"):
        frame = FRAME.match(line)
        if frame is not None:
            is_kept = is_learners(frame["file"])
        elif not line.startswith("    "):  # the end of a traceback, or no part of one
            is_kept = True
        if is_kept:
            kept.append(line)
    return "\n".join(kept)


# --- the error for what ranks raised ---


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
    """Which ranks have destroyed the process group, and where; "" if none has."""
    ranks = []
    places = []
    for rank, state in states.items():
        if state.destroyed is None:
            continue
        ranks.append(rank)
        if state.destroyed.lines:
            places.append(where([rank], [with_text(state.destroyed.lines[-1])]))
    if not ranks:
        return ""
    return "\n".join([f"{rank_list(ranks)} destroyed the process group", *places])


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


def where(ranks: Sequence[int], lines: Sequence[Line]) -> str:
    """The learner's lines, outermost first, with the ranks beside the first one.

    A line that is in no cell has the name of its file.
    """
    label = rank_list(ranks)
    rows = []
    for line in lines:
        rows.append(f"  {label}   {position_words(line)}   {line.text}".rstrip())
        label = " " * len(label)  # beside the first line only
    if len(rows) > MOST_LINES:  # a recursion
        half = MOST_LINES // 2
        gap = f"  {label}   ... {len(rows) - MOST_LINES} more calls ..."
        rows = [*rows[:half], gap, *rows[-half:]]
    return "\n".join(rows)


def position_words(line: Line) -> str:
    """Where a line is, and in which function: "line 3 in step", "train.py:3"."""
    if not line.place:
        return line.position
    return f"{line.position} in {line.place}"


# --- what happened to the ranks ---


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
