"""The findings as plain values, for machines that read `distlab explain --json`.

Runs in the command's process, called by command.py.
"""

from __future__ import annotations

from typing import Any

from distlab.diagnosis.report import call_words
from distlab.scripts.explaining.findings import Findings
from distlab.wire.messages import CallRecord, RankStatus


def as_plain(findings: Findings) -> dict[str, Any]:
    """What is found, in values that JSON has.

    Returns:
        `why` in words, `world_size`, `missing` ranks, for each rank what it did, with the call, its
        group, number, line and for whom it waits; and `mismatches` of calls that completed.
    """
    ranks = []
    for rank, state in findings.states.items():
        need = findings.needs.get(rank)
        waits_for = list(need.ranks) if need is not None else []
        ranks.append({"rank": rank, **_of_rank(state), "waits_for": waits_for})
    return {
        "why": findings.why,
        "explained": findings.is_explained,
        "world_size": findings.job.world_size,
        "missing": list(findings.job.missing),
        "ranks": ranks,
        "mismatches": [
            {
                "why": one.words,
                "group": one.group.name,
                "members": list(one.group.members),
                "sequence": one.sequence,
                "calls": {str(rank): _of_call(call) for rank, call in one.calls.items()},
            }
            for one in findings.mismatches
        ],
    }


def _of_rank(state: RankStatus) -> dict[str, Any]:
    """What one rank did."""
    if state.call is None:
        return {"doing": state.doing}
    return {"doing": state.doing, **_of_call(state.call)}


def _of_call(call: CallRecord) -> dict[str, Any]:
    """One call."""
    lines = [{"file": one.file, "line": one.number, "in": one.function} for one in call.lines]
    return {
        "call": call_words(call),
        "op": call.op,
        "group": call.group,
        "members": list(call.members),
        "sequence": call.sequence,
        "tensors": [[dtype, list(shape)] for dtype, shape in call.tensors],
        "lines": lines,
    }
