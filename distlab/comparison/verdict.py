"""`Comparison`: what a person gets who asks whether a program is the same as in one process.

Made where a comparison is judged, on the notebook's kernel or in pytest's process, called by
compare.py.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.factors import factor_words
from distlab.comparison.judging.judge import Difference, Judgement, in_order, judge, judge_ranks
from distlab.comparison.judging.pairs import VAGUE
from distlab.comparison.judging.wording import name_list, number, on_worlds
from distlab.comparison.records import RankRecord
from distlab.compat.ipython import notebook_shell, somebody_watches
from distlab.diagnosis.lines import position_words, with_text
from distlab.tables import Table, count
from distlab.words import fitted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# of our own sentences; another one may begin with a name, which stays as it is
FIRST_WORDS = (
    "All",
    "Each",
    "Every",
    "From",
    "In",
    "No",
    "One",
    "Random",
    "Ranks",
    "Rounding",
    "Some",
    "Something",
    "The",
)
EQUAL_RANKS = "The ranks do the same"
HEADS = ("ranks", "step", "differs most in", "gradient", "rounding", "value", "rounding")
TINY = 1e-300  # instead of 0, to divide by
WITHOUT_DROPOUT = "Dropout was left out, because masks over other parts of a batch are never equal."


@dataclass(frozen=True, repr=False)
class Comparison:
    """Whether a program does the same on several ranks as in one process, and if not, why.

    A notebook shows it as its sentences. It is true if nothing was found.

    Attributes:
        findings: the most important first; of equal ones, that of the largest world first.
        worlds: sizes of the worlds that were compared with the reference.
        reference: the size of that one; 0 if ranks were compared with each other.
        steps: how many were compared.
        parameters: how many were compared.
        differences: by world, how far each parameter was from that of the reference, step by step.
        notes: further sentences.
    """

    findings: tuple[Finding, ...]
    worlds: tuple[int, ...]
    reference: int
    steps: int
    parameters: int
    differences: Mapping[int, Sequence[Difference]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether the program is the same, and all of it could be compared."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.same

    # --- in words ---

    def __repr__(self) -> str:
        return "\n".join(fitted("\n".join(self._lines())))

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """For a person, sentences that break where the pane of the notebook ends."""
        if notebook_shell() is None or not somebody_watches():
            return {}, {}
        return {"text/plain": repr(self), "text/html": self._as_html()}, {}

    def _as_html(self) -> str:
        """The verdict as HTML, its first sentence in bold."""
        first, *lines = self._lines()
        blocks = [f"<div><b>{html.escape(first)}</b></div>"]
        for line in lines:
            look = ""
            if line.startswith(" "):  # a line of source
                look = ' style="font-family:monospace;white-space:pre-wrap;padding-left:2ch"'
            blocks.append(f"<div{look}>{html.escape(line.strip())}</div>")
        return "".join(blocks)

    def _lines(self) -> list[str]:
        """The verdict's lines: its first sentence, then the findings."""
        lines = [self._first_sentence()]
        for place, finding in enumerate(self._shown()):
            if place:
                lines.append(self._sentence(finding))
            for line in finding.lines:
                line = with_text(line)
                lines.append(f"  {position_words(line)}   {line.text}".rstrip())
            lines += finding.details
        return [self._of_reference(line) for line in [*lines, *self.notes]]

    def _of_reference(self, line: str) -> str:
        """A line that speaks of one process, where the reference is a world of several ranks."""
        if self.reference < 2 or line.startswith(" "):
            return line
        world = f"world of {self.reference} ranks"
        return line.replace("one process", f"the {world}").replace("One process", f"The {world}")

    def _first_sentence(self) -> str:
        """What was found, in a sentence; of the same, a second one says how close it was."""
        if self.findings:
            return self._sentence(self.findings[0], is_first=True)
        what = f"{count(self.steps, 'step')}, {count(self.parameters, 'parameter')}"
        if not self.reference:
            return f"{EQUAL_RANKS}: {what}."
        worst = self._worst()
        if worst is None:
            return f"{self._same_words()}: {what}."
        size, bound = worst
        return (
            f"{self._same_words()}: {what}. The relative difference nearest to its bound is "
            f"{number(size, 1)} (rounding explains up to {number(bound, 1)})."
        )

    def _same_words(self) -> str:
        if self.reference == 1:
            return "The same as one process"
        return f"The same as on {self.reference} ranks"

    def _worst(self) -> tuple[float, float] | None:
        """The difference that is nearest to its bound, and the bound."""
        sizes = []
        for found in self.differences.values():
            for one in found:
                sizes += one.pairs
        informative = [pair for pair in sizes if 0 < pair[1] < VAGUE]
        informative = informative or [pair for pair in sizes if 0 < pair[1] < 1]
        return max(informative, key=lambda pair: pair[0] / pair[1], default=None)

    def _shown(self) -> list[Finding]:
        """The findings, each cause once: that of the largest world stands for the others."""
        shown: dict[tuple[Cause, bool, str], Finding] = {}
        for finding in self.findings:
            words = finding.sentence if finding.cause is Cause.NOT_SEEN else ""
            shown.setdefault((finding.cause, finding.hinders, words), finding)
        return list(shown.values())

    def _sentence(self, finding: Finding, is_first: bool = False) -> str:
        """A finding's sentence, with the worlds that show it."""
        alike = [
            one
            for one in self.findings
            if one.cause is finding.cause and one.hinders == finding.hinders
        ]
        if finding.cause is Cause.NOT_SEEN:
            alike = [one for one in alike if one.sentence == finding.sentence]
        sentence = finding.sentence
        if finding.cause is Cause.GRADIENT_FACTOR:
            sentence = _of_several(finding, alike)
        worlds = on_worlds([one.world_size for one in alike])
        others = [one for one in alike if one.sentence != finding.sentence]
        if others and finding.cause is not Cause.GRADIENT_FACTOR:
            similarly = on_worlds([one.world_size for one in others])
            worlds = f"{on_worlds([finding.world_size])} (and similarly {similarly})"
        if not is_first:
            begin = "Also cannot be compared" if finding.hinders else "Also"
        elif finding.hinders:
            begin = "Cannot be compared"
        elif any(one.world_size == 1 for one in alike):
            return f"Wrong {worlds}: {_small_first(sentence)}"
        elif self.reference:
            begin = f"Not {_small_first(self._same_words())}"
        else:
            return f"The ranks do not do the same: {_small_first(sentence)}"
        if not self.reference or not any(one.world_size for one in alike):
            return f"{begin}: {_small_first(sentence)}"
        return f"{begin}, {worlds}: {_small_first(sentence)}"

    # --- as a table, and as a picture ---

    def table(self) -> Table:
        """For each world and step, the parameter that differs most, and what rounding explains.

        Runs on: anywhere.
        """
        rows = []
        for size, found in self.differences.items():
            by_step: dict[int, Difference] = {}
            for one in found:
                kept = by_step.get(one.step)
                if kept is None or excess(one) > excess(kept):
                    by_step[one.step] = one
            for step, one in by_step.items():
                rows.append(
                    (
                        str(size),
                        str(step),
                        one.parameter,
                        number(one.gradient),
                        number(one.gradient_bound),
                        number(one.value),
                        number(one.value_bound),
                    )
                )
        title = self._of_reference(self._first_sentence())
        notes = (self._of_reference("Differences are relative to the norm in one process."),)
        return Table(title, HEADS, tuple(rows), "rrlrrrr", notes)

    def plot(self) -> Figure:
        """Draw the differences against the steps, with what rounding explains as a band.

        Runs on: the notebook's kernel.

        Returns:
            The figure; a notebook shows it if it is the last value of a cell.
        """
        from distlab.plotting.differences import differences_by_step  # matplotlib takes its time

        lines: dict[str, dict[int, float]] = {f"{size} ranks": {} for size in self.differences}
        band: dict[int, float] = {}
        for step, (parameter, is_gradient) in self._drawn().items():
            for size, found in self.differences.items():
                for one in found:
                    if one.step == step and one.parameter == parameter:
                        distance, bound = one.pairs[0 if is_gradient else -1]
                        lines[f"{size} ranks"][step] = distance
                        band[step] = bound
        return differences_by_step(lines, band, self._first_sentence())

    def _drawn(self) -> dict[int, tuple[str, bool]]:
        """For each step, which parameter differs most in some world, and whether its gradient."""
        worst: dict[int, tuple[float, str, bool]] = {}
        for found in self.differences.values():
            for one in found:
                for place, (size, bound) in enumerate(one.pairs):
                    if bound > VAGUE and size <= bound:
                        continue
                    is_gradient = place < len(one.pairs) - 1
                    candidate = size / (bound or TINY), one.parameter, is_gradient
                    if one.step not in worst or candidate > worst[one.step]:
                        worst[one.step] = candidate
        return {step: (name, is_gradient) for step, (_, name, is_gradient) in worst.items()}


def excess(difference: Difference) -> float:
    """How many times a difference is what rounding explains."""
    return max(size / (bound or TINY) for size, bound in difference.pairs)


def _small_first(sentence: str) -> str:
    """A sentence that goes on after a colon."""
    if sentence.split(" ", 1)[0] in FIRST_WORDS:
        return sentence[0].lower() + sentence[1:]
    return sentence


def _of_several(finding: Finding, alike: Sequence[Finding]) -> str:
    """The sentence of a factor, with a meaning that it has in all worlds."""
    means = [
        meaning for meaning in finding.meanings if all(meaning in one.meanings for one in alike)
    ]
    if len(alike) == 1:
        return finding.sentence
    others = [one for one in alike if one.factor not in (None, finding.factor)]
    values = [f"{number(one.factor or 0.0, 4)} on {one.world_size} ranks" for one in others]
    names = finding.parameters if "only" in finding.sentence else ()
    extra = f" ({', '.join(values)})" if values else ""
    return factor_words("gradient", finding.factor or 0.0, means, names, extra)


# --- how it is made ---


def compared(
    reference: Sequence[RankRecord],
    perturbed: Sequence[Sequence[RankRecord]],
    worlds: Mapping[int, Sequence[RankRecord]],
) -> Comparison:
    """Judge worlds of ranks against the smallest one.

    Runs on: anywhere.

    Args:
        reference: what each rank of the smallest world did.
        perturbed: the same world, each time with its numbers changed by one unit of rounding.
        worlds: what each rank of each other world did, by the world's size.
    """
    judgements: dict[int, Judgement] = {}
    for size, ranks in (worlds or {len(reference): reference}).items():
        judgements[size] = judge(reference, perturbed, ranks)
    findings = []
    for size in sorted(judgements, reverse=True):
        findings += judgements[size].findings
    steps = min([len(one.steps) for one in reference], default=0)
    names = {name for one in reference for step in one.steps for name in step.parameters}
    return Comparison(
        tuple(in_order(list(dict.fromkeys(findings)))),
        tuple(worlds),
        len(reference),
        steps,
        len(names),
        {size: judgement.differences for size, judgement in judgements.items()},
        _notes(reference, worlds, judgements),
    )


def compared_ranks(records: Sequence[RankRecord]) -> Comparison:
    """Judge the ranks of one world against each other.

    Runs on: anywhere.

    Args:
        records: what each rank did.
    """
    judgement = judge_ranks(records)
    steps = max((len(one.steps) for one in records), default=0)
    names = {name for one in records for step in one.steps for name in step.parameters}
    return Comparison(
        tuple(judgement.findings),
        (len(records),),
        0,
        steps,
        len(names),
        notes=_notes(records, {}, {}),
    )


def _notes(
    reference: Sequence[RankRecord],
    worlds: Mapping[int, Sequence[RankRecord]],
    judgements: Mapping[int, Judgement],
) -> tuple[str, ...]:
    """What a person must know to read the verdict."""
    notes = []
    if any(record.dropouts for ranks in (reference, *worlds.values()) for record in ranks):
        notes.append(WITHOUT_DROPOUT)
    noise: list[str] = []
    vagueness = 0.0
    for judgement in judgements.values():
        if any(finding.cause is Cause.UNREPEATABLE for finding in judgement.findings):
            continue  # what changed was not rounding
        noise += judgement.noise
        vagueness = max(vagueness, judgement.vagueness)
    names = list(dict.fromkeys(noise))
    if names:
        whose = "The gradient of" if len(names) == 1 else "The gradients of"
        verb = "is" if len(names) == 1 else "are"
        notes.append(
            f"{whose} {name_list(names)} {verb} no larger than rounding, so little is known of "
            f"{'it' if len(names) == 1 else 'them'}."
        )
    if vagueness > VAGUE:
        notes.append(
            f"Rounding explains up to {number(vagueness)} of a gradient's norm here, so smaller "
            "mistakes cannot be seen: compare in float32, or fewer steps."
        )
    return tuple(notes)
