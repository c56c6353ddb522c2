"""The end of a checked cell: what its ranks did that NCCL may not do.

Runs on the notebook's kernel, called by cell.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from distlab.diagnosis.nccl_report import Portability
from distlab.diagnosis.portability import portability
from distlab.notebook import paragraphs
from distlab.wire.portability import Seen


def portability_of(replies: Mapping[int, Any]) -> Portability | None:
    """The portability report of a cell; None if a rank does not say what it has called.

    Args:
        replies: of the ranks to the end of checked mode.
    """
    seen = {rank: reply for rank, reply in replies.items() if isinstance(reply, Seen)}
    if len(seen) < len(replies) or not seen:
        return None
    return portability(seen)


def show_findings(report: Portability) -> None:
    """Show a report that has findings; one without them would be noise below a cell."""
    if report.findings:
        paragraphs.say(report.words(), sys.stderr)
