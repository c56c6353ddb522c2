"""What happened when ranks were preempted, in words.

No process is asked and no file is read. Runs on the notebook's kernel, and in the process of
`distlab run`; called by notebook/preempting.py, which records it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from distlab.diagnosis.lines import position_words
from distlab.diagnosis.report import call_words
from distlab.wire import messages
from distlab.wire.messages import Failure, Moment, RankStatus
from distlab.wire.source import Line
from distlab.words import grouped, rank_list, ranks_and_verb

# how a rank ended
RETURNED = "returned"
RAISED = "raised"
DIED = "died"
WAITED = "waited"  # in communication, and could not go on

INTERRUPTED = ("KeyboardInterrupt", "CancelledError")  # what distlab ends a rank with
DURATION = re.compile(r"\d+\.\d s")


@dataclass(frozen=True)
class EndOfRank:
    """How a rank ended the program, or what it did at the end of the recording.

    Attributes:
        how: one of the words above; "" if it had not ended.
        after: seconds after the first signal.
        words: how its process ended; or what it raised.
        failure: what it raised.
    """

    how: str = ""
    after: float = 0.0
    words: str = ""
    failure: Failure | None = None


@dataclass(frozen=True)
class SavedFile:
    """What can be seen of a file or folder that a rank has saved.

    Attributes:
        path: as a person knows it.
        words: what it is, such as "complete: it can be loaded"; "" for nothing more.
    """

    path: str
    words: str = ""


@dataclass(frozen=True)
class RankPreempted:
    """What happened to one rank that was to be preempted.

    Attributes:
        rank: the rank.
        when: the order in words, such as "after 20 s".
        grace: seconds between SIGTERM and SIGKILL.
        end: how it ended.
        signal: when SIGTERM came; None if it never did.
        after_begin: seconds between the begin of the program and the signal.
        began, returned: when its handler ran; None if it did not, or did not return.
        killed: whether it got SIGKILL.
        at_kill: what it did then, as far as it answered.
        steps: how many optimizer steps it had finished at the end, where no signal came.
    """

    rank: int
    when: str
    grace: float
    end: EndOfRank = EndOfRank()
    signal: Moment | None = None
    after_begin: float = 0.0
    began: Moment | None = None
    returned: Moment | None = None
    killed: bool = False
    at_kill: RankStatus | None = None
    steps: int | None = None


@dataclass(frozen=True)
class PreemptionRecord:
    """All that was recorded of a preemption.

    Attributes:
        preempted: the ranks that were to get the signal.
        others: how the other ranks ended, by rank.
        doing: what the other ranks did when the preempted ones ended.
        saves: what was saved after the signal, each with the ranks that saved it.
    """

    preempted: tuple[RankPreempted, ...]
    others: Mapping[int, EndOfRank] = field(default_factory=dict)
    doing: Mapping[int, RankStatus] = field(default_factory=dict)
    saves: tuple[tuple[SavedFile, tuple[int, ...]], ...] = ()


def words_of_preemption(record: PreemptionRecord) -> str:
    """What happened: a paragraph for each preempted rank, one for the others, and the files."""
    paragraphs = list(_words_of_preempted(record.preempted))
    others = " ".join(_words_of_others(record))
    if others:
        paragraphs.append(others)
    if any(one.signal is not None for one in record.preempted):
        paragraphs += _words_of_saves(record)
    return "\n".join(paragraphs)


def _seconds(duration: float) -> str:
    """A duration to a tenth of a second: "0.3 s"."""
    return f"{max(0.0, duration):.1f} s"


# --- a rank that was preempted ---


def _words_of_preempted(preempted: Sequence[RankPreempted]) -> Iterator[str]:
    """A paragraph for each preempted rank; one for several ranks if only their times differ."""
    slowest_first = sorted(preempted, key=lambda one: -one.end.after)
    texts = [(one.rank, " ".join(_words_of_rank(one))) for one in slowest_first]
    alike = grouped((DURATION.sub("", text), (rank, text)) for rank, text in texts)
    of_first_rank = sorted(alike.values(), key=min)
    for members in of_first_rank:
        ranks = [rank for rank, _ in members]
        _, text = members[0]
        who = rank_list(ranks)
        yield text.replace("{who}", f"Each of {who}" if len(ranks) > 1 else _capital(who))


def _words_of_rank(one: RankPreempted) -> Iterator[str]:
    """The sentences about a preempted rank."""
    if one.signal is None:
        yield _words_of_no_signal(one)
        return
    yield _words_of_signal(one, one.signal)
    yield _words_of_handler(one, one.signal)
    yield _words_of_end(one)
    yield from _words_of_children(one.signal)


def _words_of_no_signal(one: RankPreempted) -> str:
    """Why a rank got no signal."""
    words = f"{{who}} got no SIGTERM ({one.when})"
    if one.end.how:
        words += ": the program ended before"
    if one.steps is not None:
        words += f", after {_steps(one.steps)}"
    return f"{words}."


def _words_of_signal(one: RankPreempted, signal: Moment) -> str:
    """When the signal came, and what the rank did then."""
    if signal.at_step:
        place = _place_of(signal.status)
        return f"{{who}} got SIGTERM at the end of optimizer step {signal.steps}{place}."
    when = f"after {_seconds(one.after_begin)} and {_steps(signal.steps)}"
    return f"{{who}} got SIGTERM {when}, {_doing(signal.status)}."


def _words_of_handler(one: RankPreempted, signal: Moment) -> str:
    """Whether a handler ran, and when."""
    if not signal.words:
        return "It had no handler for SIGTERM, which then ends a process at once."
    if signal.words == "ignored":
        return "It ignored SIGTERM."
    name = f"its handler ({signal.words})"
    if not signal.watched:
        return f"Whether {name} ran was not seen."
    if one.began is None:
        return f"{_capital(name)} did not run. {_why_no_handler(one, signal)}".rstrip()
    when = f"{_seconds(one.began.clock - signal.clock)} later"
    if signal.at_step:
        when = "at once"
    waited = signal.status is not None and signal.status.doing == messages.COMMUNICATING
    if signal.status is not None and waited:
        when += f", when {_name_of_call(signal.status)} had returned,"
    ran = f"{_capital(name)} ran {when}"
    if not signal.at_step or waited:
        ran += _at_line(one.began.lines)
    if one.end.how == WAITED or one.returned is None:
        return f"{ran.rstrip(',')}, and had not returned at the end."
    if one.returned.words:
        return f"{ran.rstrip(',')}, and raised {one.returned.words}."
    return f"{ran.rstrip(',')}, and returned."


def _why_no_handler(one: RankPreempted, signal: Moment) -> str:
    """Why a handler did not run, as far as that was seen."""
    at_end = one.at_kill or signal.status
    if at_end is None or at_end.doing != messages.COMMUNICATING:
        return ""
    return (
        "Python runs one only between two instructions of the main thread, which did not come back "
        f"from {_name_of_call(at_end)}."
    )


def _words_of_end(one: RankPreempted) -> str:
    """How a preempted rank ended."""
    end = one.end
    after = f"{_seconds(end.after)} after the signal"
    if one.killed:
        doing = ""
        if one.at_kill is not None and one.at_kill.doing != messages.SILENT:
            doing = f", {_doing(one.at_kill)}"
        return f"It was killed (SIGKILL) after {one.grace:g} s of grace{doing}."
    if end.how == DIED:
        if end.words == "was killed by SIGTERM":
            return "SIGTERM ended it."
        return f"Its process {end.words}, {after}."
    if end.how == RETURNED:
        return f"It ended by itself {after}, without an error."
    if end.how == RAISED:
        return f"It ended by itself {after}, with {end.words}."
    if end.how == WAITED:
        return f"It waited in {_call_of_failure(end.failure)}, and could not go on."
    return "It was still running when this was recorded."


def _words_of_children(signal: Moment) -> Iterator[str]:
    """Whether child processes, such as the workers of a DataLoader, got the signal."""
    if not signal.children:
        return
    number = "child process" if signal.children == 1 else "child processes"
    if signal.whole_group:
        yield f"Its {signal.children} {number} also got SIGTERM."
        return
    yield (
        f"Its {signal.children} {number} did not get SIGTERM. torchrun and Slurm also send it to "
        "child processes."
    )


# --- the others ---


def _words_of_others(record: PreemptionRecord) -> Iterator[str]:
    """What the other ranks did, those that did the same together."""
    if not record.others or all(one.signal is None for one in record.preempted):
        return
    alike = grouped((_words_of_other(record, rank), rank) for rank in sorted(record.others))
    for words, ranks in alike.items():
        verb, rest = words
        yield f"{_capital(ranks_and_verb(ranks, *verb))} {rest}."


def _words_of_other(record: PreemptionRecord, rank: int) -> tuple[tuple[str, str], str]:
    """The verb, for one rank and for several, and the rest of a sentence about another rank."""
    end = record.others[rank]
    past = ("had", "had")
    if end.how == RETURNED:
        return ("ended", "ended"), "without an error"
    status = record.doing.get(rank)
    was_interrupted = end.words.startswith(INTERRUPTED)
    if end.how == RAISED and not was_interrupted:
        return ("raised", "raised"), end.words
    if end.how == DIED:
        return ("died", "died"), f"({end.words})"
    if status is None:
        return past, "not ended when this was recorded"
    if status.doing == messages.COMMUNICATING:
        return ("waited", "waited"), f"in {_call_of(status)}, and could not go on"
    return ("was", "were"), _doing(status)


# --- files ---


def _words_of_saves(record: PreemptionRecord) -> Iterator[str]:
    """What was saved after the signal."""
    if not record.saves:
        yield "Nothing was saved after the signal by torch.save or torch.distributed.checkpoint."
        return
    for file, ranks in record.saves:
        words = f" ({file.words})" if file.words else ""
        yield f"Saved after the signal by {rank_list(ranks)}: {file.path}{words}."


# --- words ---


def _doing(status: RankStatus | None) -> str:
    """What a rank did, as the rest of a sentence: "waiting in all_reduce(), train.py:31"."""
    if status is None:
        return "its state unknown"
    if status.doing == messages.COMMUNICATING:
        return f"waiting in {_call_of(status)}"
    if status.doing == messages.COMPUTING:
        verb = "sleeping" if status.sleeping else "computing"
        return f"{verb}{_at_line(status.lines)}"
    if status.doing == messages.SILENT:
        return "while it did not answer"
    return "while it ran nothing"


def _call_of(status: RankStatus) -> str:
    """The call in which a rank waits, with its line."""
    return f"{_name_of_call(status)}{_at_line(status.lines)}"


def _name_of_call(status: RankStatus) -> str:
    """The call in which a rank waits: "all_reduce()"."""
    return "communication" if status.call is None else call_words(status.call)


def _call_of_failure(failure: Failure | None) -> str:
    """The call that a failure of waiting came from, with its line."""
    if failure is None:
        return "communication"
    name = "communication" if failure.call is None else call_words(failure.call)
    return f"{name}{_at_line(failure.lines)}"


def _place_of(status: RankStatus | None) -> str:
    """The innermost line of a rank, after a comma."""
    if status is None or not status.lines:
        return ""
    return f",{_at_line(status.lines)}"


def _at_line(lines: Sequence[Line]) -> str:
    """The innermost of a rank's lines: " at line 3 in step"; "" without one."""
    return f" at {position_words(lines[-1])}" if lines else ""


def _steps(number: int) -> str:
    """A number of optimizer steps."""
    return "1 optimizer step" if number == 1 else f"{number} optimizer steps"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
