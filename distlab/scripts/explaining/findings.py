"""Why a job waits, as far as its dumps say: what is proven, and what nobody can know.

Runs in the command's process, called by command.py. The judgement is diagnosis/proof.py's, and the
words for it are those of a running cluster; the words for what a dump leaves open are in words.py
beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distlab.diagnosis.needs import Need, waiting_ranks
from distlab.diagnosis.proof import need_of, proof
from distlab.diagnosis.stuck import why_stuck
from distlab.scripts.explaining.groups import WORLD, Job
from distlab.scripts.explaining.out_of_step import Mismatch, mismatches
from distlab.scripts.explaining.statuses import statuses
from distlab.wire.messages import COMMUNICATING, RankStatus
from distlab.words import grouped, rank_list, ranks_and_verb

MOST_SENTENCES = 4  # about ranks that wait behind others


@dataclass(frozen=True)
class Findings:
    """What is found of a job.

    Attributes:
        job: what its ranks have recorded.
        states: what each rank was doing, by rank.
        needs: what ranks need that nothing gives them, by rank.
        can_go_on: whether a rank that waits has all that it needs, so that the others' waits may
            end.
        why: why ranks wait, in sentences; "" if nothing explains it.
        mismatches: calls that completed and did not match.
        unlisted: groups in which ranks wait, and of which no dump lists the members, with the
            ranks that have called what they wait in.
    """

    job: Job
    states: Mapping[int, RankStatus]
    needs: Mapping[int, Need]
    can_go_on: bool
    why: str
    mismatches: list[Mismatch]
    unlisted: Mapping[str, list[int]]

    @property
    def is_explained(self) -> bool:
        """Whether anything explains that the job waits."""
        # a rank that is alone in a group waits for nobody, so that there is another one in it
        lacks_another = any(len(ranks) == 1 for ranks in self.unlisted.values())
        return bool(self.needs or self.mismatches or lacks_another)


def find(job: Job) -> Findings:
    """What is found of a job."""
    states = statuses(job)
    needs = proof(states)
    can_go_on = needs is None and bool(waiting_ranks(states))
    if needs is None:
        needs = {}
        for rank, waiter in waiting_ranks(states).items():
            needed = need_of(waiter.state, states)
            if needed is not None:
                needs[rank] = needed
    why = ""
    if needs and can_go_on and _all_needed_wait(needs, states):
        why = _behind_others(needs, states)
    elif needs:
        why = why_stuck(needs, states)
    unlisted: dict[str, list[int]] = {}
    for rank, state in states.items():
        call = state.call
        if call is None or call.group == WORLD or job.groups[call.group].is_listed:
            continue
        if rank not in needs:
            unlisted.setdefault(call.group, []).append(rank)
    return Findings(job, states, needs, can_go_on, why, mismatches(job), unlisted)


def _all_needed_wait(needs: Mapping[int, Need], states: Mapping[int, RankStatus]) -> bool:
    """Whether every rank that is needed is in a call, so that none has ended, and nothing clashes.

    Where a rank among them has all that it needs, they do not wait for each other.
    """
    for needed in needs.values():
        if needed.clash:
            return False
        if any(states[rank].doing != COMMUNICATING for rank in needed.ranks):
            return False
    return True


def _behind_others(needs: Mapping[int, Need], states: Mapping[int, RankStatus]) -> str:
    """Why ranks wait behind others whose calls have all that they need, in sentences."""
    waits = []
    for rank, waiter in waiting_ranks(states).items():
        if rank in needs:
            waits.append(((waiter.call.op, needs[rank].ranks), rank))
    sentences = []
    for (op, whom), ranks in grouped(waits).items():
        who = ranks_and_verb(ranks, "waits", "wait").capitalize()
        sentences.append(f"{who} in {op} for {rank_list(whom)}.")
    running = [rank for rank in waiting_ranks(states) if rank not in needs]
    verb = ranks_and_verb(running, "is", "are").capitalize()
    sentences.append(f"{verb} in calls that every rank they need has made: they were running.")
    return " ".join(sentences[-MOST_SENTENCES:])
