"""What failed on the ranks of a cell, as one error with a message that a learner can act on: pure
functions.

Runs on the notebook's kernel, called by cell.py, ranks.py, processes.py and predict.py, and `where`
on ranks, by rpc_calls.py; no process is started, ended or asked here.
"""

import linecache
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from distlab.diagnosis.advice import NO_MORE_PROCESSES, advice_for, on_limit_of_processes
from distlab.errors import MismatchError, RankDied, RankError
from distlab.wire.faults import Fault
from distlab.wire.messages import Failure, NewGroup, RankStatus
from distlab.wire.source import Line, is_learners
from distlab.words import grouped, rank_list

MOST_LINES = 10  # of one rank's traceback
GROUPS_GONE = "Groups made with dist.new_group, and device meshes, are gone: make them again."
RPC_ENDED = (
    "RPC has ended, and its RRefs and futures with it: call rpc.init_rpc(...) again on every rank."
)
FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+, in ')  # in Python's tracebacks
DIED = "RankDied"  # the kind of a failure that is the end of a process
CUT_OFF = "was cut off from the notebook"  # a rank whose watchdog is gone
# of gloo's and of torch's stores
TIMED_OUT = re.compile("[Tt]imed out|[Ww]ait timeout|Timeout waiting")
WITH_ANOTHER = "was ended by mpiexec when another rank ended"  # how a rank died that MPI ended
OFTEN_GLOO = "often gloo: a message was longer than its tensor"
# what gloo and C++ write about an exception that ends the process
GLOO_ENDS = r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)"
CPP_ENDS = r"terminate called after throwing an instance of '([^']*)'\s+what\(\):\s+([^\n]*)"
RUN_CHECKED = (
    "Run it again with check=True (%%px --check): it compares the calls before data moves, and names the one that does "
    "not match."
)
NOT_COMPARED = (
    "What torch begins in C++ is not compared: functional collectives, which DTensor uses, and the gradients and "
    "buffers that DDP sends by itself."
)
CAUSES = {
    "SIGKILL": "often by the system when memory runs out, or by kill -9",
    "SIGSEGV": "a fault in compiled code",
}


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


def lines_of_dead(lines: Sequence[Line], pid: int, source: str) -> tuple[Line, ...]:
    """Where a process was when it ended, with the text of the lines, as the notebook shows them.

    Args:
        lines: as wire/faults.py reads them: those of cells have a file that only the process had.
        pid: its number.
        source: the text of the %%px cell that it ran, its first line included; "" for a function.
    """
    texts = source.splitlines()
    cells = [line.file for line in lines if f"ipykernel_{pid}" in line.file]
    shown = []
    for line in lines:
        if line.file not in cells:
            shown.append(with_text(line))
        elif line.file == cells[0] and line.number <= len(texts):
            shown.append(
                Line(line.number, texts[line.number - 1].removeprefix("%px ").strip(), line.place)
            )
        else:  # of a function from an earlier cell
            shown.append(Line(line.number, "", line.place))
    return tuple(shown)


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


def rank_died(
    died: Mapping[int, str],
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
        died: how, in words, by rank.
        others: the ranks that are alive.
        again: what to do for new ranks; "" if they come by themselves.
        host_lost: whether a host of theirs cannot be reached any more.
        last_lines: the end of what they wrote, kept as the failures' traceback.
        gone: what was lost with them, in sentences.
        lines: where they were, by rank, as far as that is known.
        then: what is known of the others at that time, and what to do to learn more.
    """
    who, several = rank_list(others).capitalize() if others else "", len(others) > 1
    if host_lost:
        keep = "keep their" if several else "keeps its"
        kept = f"{who} {keep} variables; until then, ranks={list(others)} can use them without a group."
        advice = "cluster.heal() and the next cell for all ranks try the host again."
    elif not again:
        kept = f"{who} {'keep theirs' if several else 'keeps its own'}."
        places = (
            "new ones in their places, without their"
            if len(died) > 1
            else "a new one in its place, without its"
        )
        advice = f"The next cell starts {places} variables, and rebuilds the process group."
    else:
        kept, why = "", "The cluster is incomplete"
        if ended := [rank for rank, how in died.items() if how == WITH_ANOTHER]:
            why = "MPI ends a whole program when one of its processes dies: mpiexec has ended"
            why += f" {rank_list(ended)} too.\nAll variables are lost"
        advice = f"{why}: {again}."
    words = " ".join(filter(None, [advice, kept if others else "", gone]))
    causes_first = sorted(died.items(), key=lambda item: (item[1] == WITH_ANOTHER, item[0]))
    raised = [
        Failure(rank, DIED, how, lines.get(rank, ()), traceback=last_lines.get(rank, ""))
        for rank, how in causes_first
    ]
    alike = grouped((failed.lines, failed.rank) for failed in raised if failed.lines)
    places = [where(ranks, at) for at, ranks in alike.items()]
    return RankDied(
        "\n".join([f"{deaths(died)}.", *places, *then, words]), tuple(raised), tuple(others)
    )


def waited_to_join(failed: Failure) -> bool:
    """Whether a rank that could not join a group only waited for the others."""
    return (
        failed.consequence
        or failed.kind == "DistStoreError"
        or "timed out" in failed.message.lower()
    )


def not_built(
    failed: Sequence[Failure],
    missing: Sequence[int],
    patience: float,
    connecting: float,
    is_first: bool,
) -> str:
    """Why a process group could not be built, and what to do.

    Args:
        failed: what ranks raised, in the order of time.
        missing: ranks that have neither joined nor failed.
        patience: seconds that ranks wait for each other before they build the group.
        connecting: seconds that they then have to connect.
        is_first: whether the cluster starts; if not, its ranks are still there.
    """
    own = [one for one in failed if not waited_to_join(one)]
    first = (own or failed)[:1]
    again = "start the cluster again" if is_first else "call cluster.restart() for new ranks"
    parts = []
    for one in first:
        if one.kind == DIED:
            parts.append(f"rank {one.rank} {one.message} when it joined.")
        else:
            parts += raised_words([one])
    limit = next(
        filter(None, (on_limit_of_processes(f"{one.kind}: {one.message}") for one in failed)), ""
    )
    if limit:
        parts.append(f"{limit} Then {again}.")
        return f"The process group could not be built: {chr(10).join(parts)}"
    if missing and not own:
        parts.append(f"{rank_list(missing).capitalize()} had not come.")
    if own and own[0].kind != DIED:
        parts.append(f"Correct what rank {own[0].rank} raised, then {again}.")
    elif not own:
        here = "On several hosts, interface= names the network on which they reach each other"
        limits = f"Ranks wait {patience:g} s for each other, and then {connecting:g} s for their connections"
        parts.append(f"{limits}. {here}. Then {again}.")
    else:
        parts.append(f"{again.capitalize()}; with fewer ranks, if memory is short.")
    return f"The process group could not be built: {chr(10).join(parts)}"


def loss(variables: Sequence[str]) -> str:
    """What is lost with a rank, in words, with the names of its variables if they are known."""
    return "and its variables are lost" + (f": {', '.join(variables)}" if variables else "")


def deaths(died: Mapping[int, str]) -> str:
    """Which ranks died and how, in words, without those that died with another; those that died
    alike together.
    """
    alike = grouped((how, rank) for rank, how in sorted(died.items()) if how != WITH_ANOTHER)
    rows = [(rank_list(ranks), how) for how, ranks in alike.items()]
    return "; ".join(
        f"{who} {re.sub('^was ', 'were ', how) if 'ranks' in who else how}" for who, how in rows
    )


def exit_words(status: int | None, log: str = "", fault: Fault | None = None) -> str:
    """How a process ended, in words: "was killed by SIGKILL (often ...)", "ended with exit status
    3".

    Args:
        status: None if it is not known.
        log: the end of what the process wrote.
        fault: where it was if a fault ended it, as far as that is known.
    """
    if status is None:
        return "died"
    if status >= 0:
        return f"ended with exit status {status}"
    if fault is not None and fault.aborted:
        status = -signal.SIGABRT
    # in a thread of Python's, which is none of gloo's
    in_python = fault is not None and fault.in_python
    name = {known.value: known.name for known in signal.Signals}.get(-status, f"signal {-status}")
    cause = _why_aborted(log, in_python) if name == "SIGABRT" else CAUSES.get(name, "")
    return f"was killed by {name} ({cause})" if cause else f"was killed by {name}"


def _why_aborted(log: str, in_python: bool) -> str:
    """Why a process has called abort(), from the end of what it wrote; "" if nothing is known."""
    if NO_MORE_PROCESSES.search(log):
        return "it was refused a thread"
    if sizes := re.findall(GLOO_ENDS, log):
        came, expected = sizes[-1]
        return f"gloo received {came} bytes where it expected {expected}"
    if thrown := re.findall(CPP_ENDS, log):
        kind, words = thrown[-1]
        return f"C++ raised {kind}: {readable(words)}"
    return "" if in_python else OFTEN_GLOO


def is_mismatch(how: str) -> bool:
    """Whether a process that ended so, in words, may have made a call that does not match those of
    other ranks.
    """
    return "(gloo received" in how or OFTEN_GLOO in how
