"""The portability report: its findings, with their places, and its words.

Made by portability.py beside it on the notebook's kernel, or in the launcher of a script; lines of
files are read.
"""

from __future__ import annotations

from dataclasses import dataclass

from distlab.diagnosis.lines import position_words, with_text
from distlab.wire.source import Line
from distlab.words import rank_list

MOST_PLACES = 6  # of one finding that are shown
DOES_NOT_WORK = "Does not work on NCCL:"
MAY_NOT = "May not work on NCCL:"


@dataclass(frozen=True)
class Place:
    """Where some ranks did something, and how often.

    Attributes:
        ranks: the ranks.
        line: the program's line; None if there is none.
        op: the function that was called; "" where the line says enough.
        count: how often each of the ranks called it; 0 where that says nothing.
    """

    ranks: tuple[int, ...]
    line: Line | None
    op: str = ""
    count: int = 0

    def words(self) -> str:
        """The place, as a row of the report."""
        columns = [rank_list(self.ranks)]
        if self.line is None:
            columns.append(self.op)
        else:
            line = with_text(self.line)
            columns += [position_words(line), line.text]
        if self.count > 1:
            columns.append(f"{self.count} times")
        return "  " + "   ".join(columns)


@dataclass(frozen=True)
class Finding:
    """One thing that a program did.

    Attributes:
        what: that, in a few words.
        why: why NCCL is different, and what to do, in sentences.
        source: where that is written.
        places: where it was done.
        is_certain: whether it fails on NCCL in every such program.
    """

    what: str
    why: str
    source: str
    places: tuple[Place, ...]
    is_certain: bool = False

    def words(self) -> str:
        """The finding, as a paragraph of the report."""
        lines = [f"- {self.what}. {self.why}"]
        lines += [place.words() for place in self.places[:MOST_PLACES]]
        more = len(self.places) - MOST_PLACES
        if more > 0:
            lines.append(f"  and {more} more lines")
        lines.append(f"  {self.source}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Portability:
    """The report.

    Attributes:
        findings: what was found; what is certain comes first.
        calls: how many calls were seen, on all ranks.
        kinds: how many different functions they called.
    """

    findings: tuple[Finding, ...]
    calls: int
    kinds: int

    def words(self) -> str:
        """The report, also where there is nothing to report."""
        if not self.findings:
            return self._nothing()
        parts = []
        for heading, is_certain in ((DOES_NOT_WORK, True), (MAY_NOT, False)):
            found = [one.words() for one in self.findings if one.is_certain == is_certain]
            if found:
                parts += [heading, *found]
        return "\n".join(parts)

    def _nothing(self) -> str:
        if not self.calls:
            return "Nothing that NCCL lacks was seen: Python made no call of a group."
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        kinds = "1 kind" if self.kinds == 1 else f"{self.kinds} kinds"
        return f"Nothing that NCCL lacks was seen: {calls} of {kinds}."
