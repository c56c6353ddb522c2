"""The report of `distlab explain`: who waits, why, and what a dump does not say.

Runs in the command's process, called by command.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from distlab.diagnosis.report import table, with_line
from distlab.scripts.explaining.findings import Findings
from distlab.scripts.explaining.gathering import Gathered
from distlab.scripts.explaining.groups import Group, Job
from distlab.scripts.explaining.out_of_step import Mismatch, called_at
from distlab.scripts.explaining.statuses import first_open, last_call, record_of
from distlab.wire.messages import COLLECTIVE, COMMUNICATING, OUTSIDE, CallRecord, RankStatus
from distlab.words import grouped, rank_list, ranks_and_verb

SIZE = "TORCH_FR_BUFFER_SIZE=2000"
TURN_ON = (
    f"{SIZE} turns it on before the job starts (TORCH_NCCL_TRACE_BUFFER_SIZE in older versions of "
    "torch); in new ones it is on unless this is 0."
)
NOTHING_WAITS = "Nothing waits, because every recorded call has completed."
ALL_THERE = (
    "The calls do not explain it: each that has not completed was called alike by every rank that "
    "it needs. It was still running, or a device or the network holds it up."
)
NANOSECONDS = 1e9


def report(gathered: Gathered, findings: Findings) -> str:
    """The report, in lines.

    Args:
        gathered: the dumps.
        findings: what is found of them.
    """
    lines = [gathered.words()]
    for path, why in gathered.skipped.items():
        lines.append(f"Left out: {os.path.basename(path)} {why}.")
    return "\n".join([*lines, "", *_lines(findings)])


def _lines(findings: Findings) -> Iterator[str]:
    """The lines of the report."""
    job = findings.job
    for mismatch in findings.mismatches:
        yield from _of_mismatch(mismatch, job)
    if findings.why:
        yield findings.why
    waiting = [rank for rank, state in findings.states.items() if state.doing == COMMUNICATING]
    if waiting:
        yield from _of_unlisted(findings)
        if not findings.why and not findings.unlisted:
            yield ALL_THERE
            yield from _of_devices(findings)
        yield table(_as_shown(findings))
    elif all(not record.entries for record in job.ranks.values()):
        ranks = rank_list(list(job.ranks))
        yield f"The recorder of {ranks} was off, or has seen no call. {TURN_ON}"
        return
    else:
        yield NOTHING_WAITS
        yield from _last_words(job)
    yield from _of_numbers(findings)
    yield from _of_missing(job)
    if waiting:
        yield from _of_outside(findings)
    yield from _of_recorders(findings)


def _as_shown(findings: Findings) -> dict[int, RankStatus]:
    """What each rank was doing, with the names of groups in the place of unknown members."""
    shown = {}
    for rank, state in findings.states.items():
        shown[rank] = state
        if state.call is not None:
            group = findings.job.groups[state.call.group]
            shown[rank] = replace(state, call=_with_name(state.call, group))
    return shown


def _with_name(call: CallRecord, group: Group) -> CallRecord:
    """A call with the name of its group, where the members that are known cannot be all."""
    if not group.is_vague:
        return call
    return replace(call, function=f"group={group.name}", group="")


def _of_mismatch(mismatch: Mismatch, job: Job) -> Iterator[str]:
    """Calls that completed and did not match, with their lines."""
    where = f"call number {mismatch.sequence} of {mismatch.group.words()}"
    yield f"{mismatch.words} That is {where}: from there on these ranks are out of step."
    yield from _of_called(mismatch.group, mismatch.sequence, job)


def _of_called(group: Group, sequence: int, job: Job) -> Iterator[str]:
    """What ranks have called under one number, a row for all that have called the same."""
    for called in called_at(group, sequence, job):
        words = with_line(_with_name(called.call, group))
        if len(called.ranks) > 1 and called.call.lines:
            words += f" on rank {called.ranks[0]}"
        yield f"  {rank_list(called.ranks)}   {words}"


def _of_unlisted(findings: Findings) -> Iterator[str]:
    """Who waits in a group of which nobody knows all members."""
    for name, ranks in findings.unlisted.items():
        others = [rank for rank in findings.states if rank not in ranks]
        if others:
            yield (
                f"{ranks_and_verb(ranks, 'waits', 'wait').capitalize()} in group {name}, whose "
                f"members gloo does not list. Any other member is among {rank_list(others)}, and "
                "has not called it."
            )


def _of_devices(findings: Findings) -> Iterator[str]:
    """Which devices have not begun a call that others have, where the recorder notes it."""
    waits = []
    for rank, state in findings.states.items():
        if state.call is not None and state.call.kind == COLLECTIVE:
            waits.append(((state.call.group, state.call.sequence), rank))
    for (name, _), ranks in grouped(waits).items():
        group = findings.job.groups[name]
        started = []
        for rank in ranks:
            first = first_open(group.records[rank])
            started.append((first is not None and first.has_started, rank))
        by_start = grouped(started)
        if True in by_start and False in by_start:
            begun = ranks_and_verb(by_start[True], "has", "have").capitalize()
            others = ranks_and_verb(by_start[False], "has", "have")
            yield (
                f"{begun} started it, but {others} not, because something before it still occupies "
                "the device there."
            )


def _of_numbers(findings: Findings) -> Iterator[str]:
    """Which call of its group is the first that does not complete, and who is ahead of it."""
    waits = []
    for rank in findings.needs:
        call = findings.states[rank].call
        if call is not None and call.kind == COLLECTIVE:
            waits.append(((call.group, call.sequence), rank))
    for (name, sequence), ranks in grouped(waits).items():
        group = findings.job.groups[name]
        words = f"It is call number {sequence} of {group.words()}"
        if len(findings.needs) > len(ranks):
            words = f"{rank_list(ranks).capitalize()}: call number {sequence} of {group.words()}"
        yield f"{words}{_behind(group, sequence)}{_ahead(group, sequence, ranks)}."
        is_clash = any(findings.needs[rank].clash for rank in ranks)
        if is_clash and not set(group.records) <= set(ranks):  # the table does not show all calls
            yield from _of_called(group, sequence, findings.job)


def _behind(group: Group, sequence: int) -> str:
    """Which members have made fewer calls than this one, in words; "" if none has."""
    fewer = []
    for rank in group.members:
        record = group.records.get(rank)
        # a rank without any may have been asked for its open calls only
        if record is None or record.has_shifted or not record.sequences:
            continue
        newest = record.sequences[-1]
        if newest < sequence:
            fewer.append((newest, rank))
    words = ""
    for newest, ranks in grouped(fewer).items():
        words += f"; {ranks_and_verb(ranks, 'has', 'have')} made {newest}"
    return words


def _ahead(group: Group, sequence: int, ranks: list[int]) -> str:
    """Which ranks have begun further calls behind the one that does not complete, in words."""
    further = []
    for rank in ranks:
        record = group.records[rank]
        more = record.sequences[-1] - sequence
        if more > 0:
            newest = with_line(_with_name(record_of(record.kept[-1], group), group))
            further.append(((more, newest), rank))
    words = ""
    for (more, newest_words), alike in grouped(further).items():
        calls = "call" if more == 1 else "calls"
        who = ranks_and_verb(alike, "has", "have")
        words += f"; {who} begun {more} more {calls} behind it, up to {newest_words}"
    return words


def _of_missing(job: Job) -> Iterator[str]:
    """The ranks of which there is no dump."""
    missing = job.missing
    if missing:
        them = "they" if len(missing) > 1 else "it"
        yield f"There is no dump of {rank_list(missing)}: {them} died, or did not write one."
    if not job.is_size_known:
        size = f"{len(job.ranks)} dumps" if len(job.ranks) > 1 else "this dump"
        yield (
            f"Nothing in {size} says how many ranks the job has: if there are more than "
            f"{job.world_size}, say so with --world-size."
        )


def _of_outside(findings: Findings) -> Iterator[str]:
    """What is known of ranks that were in no call."""
    lasts = []
    for rank, state in findings.states.items():
        if state.doing == OUTSIDE:
            lasts.append((_words_of_last(rank, findings.job), rank))
    for words, ranks in grouped(lasts).items():
        was = ranks_and_verb(ranks, "was", "were").capitalize()
        they = "they" if len(ranks) > 1 else "it"
        its = "Their" if len(ranks) > 1 else "Its"
        yield f"{was} between calls: the recorder cannot know what {they} did."
        yield f"{its} last call{words}."
    if lasts and _is_gloo(findings.job):
        yield "gloo's recorder notes no send, no recv and no new_group: it may have been in one."


def _words_of_last(rank: int, job: Job) -> str:
    """What the last call of a rank was, as the end of a sentence."""
    found = last_call(job.ranks[rank])
    if found is None:
        return " is not recorded: it made none, or its recorder was off"
    record, call = found
    group = job.group_of(rank, record)
    return f" was {with_line(_with_name(record_of(call, group), group))}"


def _is_gloo(job: Job) -> bool:
    """Whether the job's dumps are gloo's, which list no members."""
    return not any(group.is_listed for group in job.groups.values())


def _last_words(job: Job) -> Iterator[str]:
    """How far apart in time the last calls of the ranks are, by their own clocks."""
    times = {}
    for rank, record in job.ranks.items():
        found = last_call(record)
        if found is not None and found[1].created:
            times[rank] = found[1].created
    if len(times) < 2:
        return
    first = min(times, key=lambda rank: times[rank])
    last = max(times, key=lambda rank: times[rank])
    seconds = (times[last] - times[first]) / NANOSECONDS
    ends = []
    for rank in (last, first):
        found = last_call(job.ranks[rank])
        if found is not None:
            ends.append(with_line(record_of(found[1], job.group_of(rank, found[0]))))
    yield (
        f"The last call of rank {last} ({ends[0]}) began {seconds:.1f} s after that of rank "
        f"{first} ({ends[1]}), by the clock of each."
    )


def _of_recorders(findings: Findings) -> Iterator[str]:
    """What the recorders have not kept."""
    job = findings.job
    if not any(record.has_frames for record in job.ranks.values()):
        yield "Dumps in JSON have no lines of the program: those of _dump_fr_trace() have."
    shifted = [group.words() for group in job.groups.values() if not group.is_numbered]
    if shifted:
        yield (
            f"The calls of {' and '.join(shifted)} cannot be compared: messages have taken numbers "
            f"of collectives, and older calls are forgotten. A larger buffer keeps them ({SIZE})."
        )
    messages = any(group.begun for record in job.ranks.values() for group in record.groups.values())
    if job.has_forgotten and messages and findings.needs:
        yield "The recorder has forgotten older messages: only those that are still open count."
