"""What failed on the ranks of a cell, as one error with a message that a learner can act on: pure
functions.

Runs on the notebook's kernel, called by cell.py, ranks.py, cluster.py and predict.py, and `where`
on ranks, by rpc_calls.py; no process is started, ended or asked here.
"""

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from distlab.diagnosis.advice import advice_for
from distlab.errors import MismatchError, RankError
from distlab.wire.messages import Failure, NewGroup, RankStatus
from distlab.wire.source import Line, is_learners
from distlab.words import grouped, rank_list

MOST_LINES = 10  # of one rank's traceback
GROUPS_GONE = "Groups made with dist.new_group, and device meshes, are gone: make them again."
RPC_ENDED = (
    "RPC has ended, and its RRefs and futures with it: call rpc.init_rpc(...) again on every rank."
)
FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+, in ')  # in Python's tracebacks
# of gloo's and of torch's stores
TIMED_OUT = re.compile("[Tt]imed out|[Ww]ait timeout|Timeout waiting")
RUN_CHECKED = (
    "Run it again with check=True (%%px --check): it compares the calls before data moves, and names the one that does "
    "not match."
)
NOT_COMPARED = (
    "What torch begins in C++ is not compared: functional collectives, which DTensor uses, and the gradients and "
    "buffers that DDP sends by itself."
)


def gone_with_group(subgroups: bool, rpc: bool) -> str:
    """What was lost with a process group that was rebuilt, in sentences: its subgroups, and RPC."""
    return " ".join([*[GROUPS_GONE] * subgroups, *[RPC_ENDED] * rpc])


def failure(raised: Failure) -> Failure:
    """A rank's own description of its exception, readable, and with source that only the notebook
    has.
    """
    handled = failure(raised.handled) if raised.handled is not None else None
    lines = tuple(map(with_text, raised.lines))
    return replace(raised, message=readable(raised.message), lines=lines, handled=handled)


def with_text(line: Line) -> Line:
    """A line that a rank has reported, with its text, which the rank may not have."""
    return replace(line, text=line.text or linecache.getline(line.file, line.number).strip())


def readable(message: str) -> str:
    """A message without what means nothing to its reader: gloo's source paths, byte-swapped ports,
    addresses, and what the cluster puts before a learner's keys of a store.

    Ends of a connection without an address go as well: gloo sometimes writes them and sometimes
    does not. So does what torch writes around an error of a Future's callback: that it was one, and
    all lines that led to it.

    A learner's message may have a million characters in one line: no pattern may begin at each of
    them and look far.
    """
    message = re.sub(r"Got the following error when running the callback: ", "", message).split(
        "\n\nAt:\n"
    )[0]
    message = re.sub(r"(\[rank\d+\]:)?\[[^\[\]]*\.(cc|cpp|h):\d+\]\s*", "", message)
    message = re.sub(r'"/__w/pytorch/[^"]*/([^"/]+)":(\d+)', r"\1:\2", message)
    # what the cluster's own keys begin with
    message = re.sub(r"(?<![^\s'\"\[(])[^\s'\"\[(]*/group-\d+/(\d+/)*/*", "", message)
    message = re.sub(r" at 0x[0-9a-f]+>", ">", message)
    message = re.sub(r",?\s{0,2}(remote=)?\[?127\.0\.0\.1\]?:\d+(\$\d+)?", "", message)
    message = re.sub(r"\s{0,2}\(\s{0,2}<-->\s{0,2}(\[none\])?\s{0,2}\)", "", message)
    message = message.split("\nException raised from")[0].strip()
    return (
        _without_libraries(message) if "Traceback (most recent call last)" in message else message
    )


def _without_libraries(message: str) -> str:
    """A message that holds Python's traceback of another process, as of a DataLoader's worker, with
    the learner's lines only; those of libraries tell a learner nothing.
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


def rank_error(
    failures: Sequence[Failure], targets: Sequence[int], rebuilt: bool, gone: str, cause: str = ""
) -> RankError:
    """One error for all that the ranks of a cell raised: culprits first, those that only waited for
    them in one line.

    Args:
        failures: of each rank that failed.
        targets: the ranks that ran the cell.
        rebuilt: whether the group was rebuilt afterwards.
        gone: what was lost with the old group, in sentences.
        cause: why ranks could not go on if none is at fault.
    """
    # where none is at fault, a wait that timed out comes first: it has closed the others'
    # connections
    culprits = [f for f in failures if not f.consequence] or [
        f for f in failures if TIMED_OUT.search(f.message)
    ]
    consequences = [f for f in failures if f not in culprits]
    finished = tuple(rank for rank in targets if rank not in {f.rank for f in failures})
    parts = [*raised_words(culprits)]
    parts += dict.fromkeys(filter(None, [cause, *map(advice_for, culprits)]))
    if not parts:
        parts = [*raised_words(consequences)]
    elif consequences:
        alike = grouped((f.lines, f.rank) for f in consequences)
        lines = "\n".join(where(ranks, lines) for lines, ranks in alike.items())
        waited = f"{rank_list([f.rank for f in consequences])} waited in communication and could not go on"
        parts.append(f"{waited}:\n{lines}" if lines else f"{waited}.")
    parts += handled_words(failures)
    if finished:
        parts.append(f"{rank_list(finished).capitalize()} finished.")
    if rebuilt:
        kept = (
            "The process group is rebuilt and variables are kept: change the cell and run it again."
        )
        parts.append(f"{kept} {gone}".rstrip())
    return RankError("\n".join(parts), (*culprits, *consequences), finished)


def groups_error(
    words: str,
    made: Mapping[int, NewGroup],
    raised: Sequence[Failure],
    targets: Sequence[int],
    gone: str,
) -> RankError:
    """The error for ranks that make different groups: the same words, whichever rank saw it first
    and raised.

    Args:
        words: what each rank makes.
        made: the groups that differ, by rank.
        raised: what the ranks raised.
        targets, gone: as for `rank_error`.
    """
    places = grouped((group.line, rank) for rank, group in sorted(made.items()))
    rows = [where(ranks, [with_text(line)]) for line, ranks in places.items() if line is not None]
    kept = "The process group is rebuilt and variables are kept: change the cell and run it again."
    if GROUPS_GONE not in gone:  # whether any was built depends on which rank was first
        gone = f"{GROUPS_GONE} {gone}"
    message = "\n".join(
        [f"some ranks raised {MismatchError.__name__}: {words}", *rows, f"{kept} {gone}".rstrip()]
    )
    finished = tuple(rank for rank in targets if rank not in {f.rank for f in raised})
    culprits = [f for f in raised if not f.consequence]
    consequences = [f for f in raised if f.consequence]
    return RankError(message, (*culprits, *consequences), finished)


def raised_words(raised: Sequence[Failure]) -> Iterator[str]:
    """What ranks raised, each with the learner's lines; those that read the same together."""
    for (kind, message, lines), ranks in grouped(
        ((f.kind, f.message, f.lines), f.rank) for f in raised
    ).items():
        what = f"{kind}: {message}" if message else kind
        yield f"{rank_list(ranks)} raised {what}\n{where(ranks, lines)}".rstrip()


def handled_words(raised: Sequence[Failure]) -> Iterator[str]:
    """Errors that ranks were handling when they raised others in communication, as in a `finally`,
    with their lines.
    """
    own = [(f.rank, f.handled) for f in raised if f.handled is not None]
    for (kind, message, lines), ranks in grouped(
        ((e.kind, e.message, e.lines), rank) for rank, e in own
    ).items():
        what = f"{kind}: {message}" if message else kind
        was = "were" if len(ranks) > 1 else "was"
        yield f"{rank_list(ranks)} had raised {what} before, and {was} handling it\n{where(ranks, lines)}".rstrip()


def destroyed(states: Mapping[int, RankStatus]) -> str:
    """Which ranks have destroyed the process group, and where; "" if none has."""
    calls = {rank: state.destroyed for rank, state in states.items() if state.destroyed}
    if not calls:
        return ""
    rows = [
        where([rank], [with_text(call.lines[-1])]) for rank, call in calls.items() if call.lines
    ]
    return "\n".join([f"{rank_list([*calls])} destroyed the process group", *rows])


def about_checks(is_pythons: bool, was_checked: bool) -> list[str]:
    """What to say of checked mode where gloo has ended a rank and the calls that do not match are
    not known.

    Args:
        is_pythons: whether a function of torch.distributed was under way, which checked mode
            compares.
        was_checked: whether the cell ran in it.
    """
    words = [] if was_checked else [RUN_CHECKED]
    return words if is_pythons else [*words, NOT_COMPARED]


def where(ranks: Sequence[int], lines: Sequence[Line]) -> str:
    """The learner's lines, outermost first, with the ranks beside the first one and the files of
    those of no cell.
    """
    label = rank_list(ranks)
    rows = []
    for line in lines:
        place = f" in {line.place}" if line.place else ""
        rows.append(f"  {label}   {line.position}{place}   {line.text}".rstrip())
        label = " " * len(label)
    if len(rows) > MOST_LINES:  # a recursion
        rows[MOST_LINES // 2 : -MOST_LINES // 2] = [
            f"  {label}   ... {len(rows) - MOST_LINES} more calls ..."
        ]
    return "\n".join(rows)


def late(ranks: Sequence[int], timeout: float | None) -> str:
    """The first sentence for ranks that were interrupted, by the clock or by a person (timeout
    None).
    """
    who = rank_list(ranks) if ranks else "no rank"
    return (
        f"{who} did not come back within {timeout:g} s."
        if timeout
        else f"{who.capitalize()} had not finished."
    )


def outcome(seconds: float, busy: Sequence[int], replaced: Mapping[int, str], gone: str) -> str:
    """What happened to the ranks, and what to do now.

    Args:
        seconds: from the start of the cell until its ranks were free.
        busy: ranks that could not be freed.
        replaced: what was lost with ranks that could not be freed.
        gone: what was lost with the old group, in sentences.
    """
    if busy:
        return f"{rank_list(busy).capitalize()} could not be freed: call cluster.restart()."
    kept = "Variables are kept and the process group is rebuilt: change the cell and run it again."
    if replaced:
        kept = "Other ranks keep their variables, and the process group is rebuilt."
    return " ".join([f"Freed after {seconds:.1f} s.", *not_freed(replaced), kept, gone]).rstrip()


def not_freed(replaced: Mapping[int, str]) -> list[str]:
    """A sentence for each rank that could not be freed: who takes its place, and what is lost with
    it.
    """
    return [
        f"Rank {r} could not be freed: a new process took its place, {what}."
        for r, what in replaced.items()
    ]


def loss(variables: Sequence[str]) -> str:
    """What is lost with a rank, in words, with the names of its variables if they are known."""
    return "and its variables are lost" + (f": {', '.join(variables)}" if variables else "")
