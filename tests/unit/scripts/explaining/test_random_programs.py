"""Random small programs as dumps: what is said of them is what statuses of their ranks prove."""

from dataclasses import replace
from random import Random

import pytest

from distlab.diagnosis.proof import proof
from distlab.scripts.explaining.findings import find
from distlab.scripts.explaining.groups import job_of
from distlab.scripts.explaining.recording import recorded
from distlab.wire.messages import COLLECTIVE
from tests.unit.diagnosis.oracle import (
    GROUPS,
    METHODS,
    ROOTED,
    Run,
    random_program,
    text,
    three_ranks,
)
from tests.unit.scripts.explaining.dumps import Recorder

PROGRAMS = 1500
MEMBERS = {name: list(members) for name, members in GROUPS.items()}


class RecordedRun(Run):
    """A run that keeps what each rank has begun, as a flight recorder does."""

    def __init__(self, program, rng):
        self.begun = {rank: [] for rank in range(len(program))}
        super().__init__(program, rng)

    def _begin(self, number, step):
        op = super()._begin(number, step)
        self.begun[number].append(op)
        return op

    def records(self):
        """What is kept of each rank's dump, by rank."""
        found = {}
        for rank, ops in self.begun.items():
            recorder = Recorder(rank, MEMBERS)
            for line, op in enumerate(ops):
                state = "completed" if self._has_ended(op) else "scheduled"
                if op.step.op in METHODS:
                    sizes = () if op.step.op == "barrier" else ((2,),)
                    recorder.call(op.step.op, line, op.step.group, sizes=sizes, state=state)
                else:
                    recorder.message(op.step.op, line, op.step.peer, op.step.group, state=state)
            found[rank] = recorded("", rank, recorder.content())
        return found


def without_what_is_not_recorded(program):
    """The program without tags, recvs from any source, and collectives with a root."""
    kept = []
    for steps in program:
        left_out = {step.work for step in steps if is_not_recorded(step)} - {""}
        kept.append(
            tuple(
                replace(step, tag=0)
                for step in steps
                if not is_not_recorded(step) and not (step.op == "wait" and step.work in left_out)
            )
        )
    return tuple(kept)


def is_not_recorded(step):
    return step.op in ROOTED or (step.op == "recv" and step.peer is None)


@pytest.fixture(autouse=True)
def ranks():
    with three_ranks():
        yield


def test_dumps_say_what_statuses_prove():
    """Each rank that never ends is explained; where it is the same call, by the same ranks."""
    compared = 0
    for seed in range(PROGRAMS):
        program = without_what_is_not_recorded(random_program(Random(seed)))
        run = RecordedRun(program, Random(seed))
        findings = find(job_of(run.records()))
        states = run.states()
        proven = proof(states) or {}
        shown = f"seed {seed}:\n{text(program)}\n{findings.why}"
        assert findings.mismatches == [], shown
        assert run.stuck <= set(findings.needs), shown
        for rank, needed in proven.items():
            live, dumped = states[rank].call, findings.states[rank].call
            if (live.group, live.sequence, live.op) != (dumped.group, dumped.sequence, dumped.op):
                continue  # the first of several calls that never end
            if live.kind != COLLECTIVE and live.peer != dumped.peer:
                continue
            compared += 1
            assert set(needed.ranks) == set(findings.needs[rank].ranks), shown
            assert bool(needed.clash) == bool(findings.needs[rank].clash), shown
    assert compared > PROGRAMS / 4
