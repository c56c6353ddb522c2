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
from distlab.scripts.explaining.groups import Job
from distlab.scripts.explaining.out_of_step import Mismatch, mismatches
from distlab.scripts.explaining.statuses import statuses
from distlab.wire.messages import RankStatus


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
    """

    job: Job
    states: Mapping[int, RankStatus]
    needs: Mapping[int, Need]
    can_go_on: bool
    why: str
    mismatches: list[Mismatch]

    @property
    def is_explained(self) -> bool:
        """Whether anything explains that the job waits."""
        return bool(self.needs or self.mismatches)


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
    why = why_stuck(needs, states) if needs else ""
    return Findings(job, states, needs, can_go_on, why, mismatches(job))
