"""The steps of a training in a trace, from the marks that torch's optimizers leave in a profile.

Pure functions, called by trace.py. Runs on the notebook's kernel. Times are in seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from distlab.arguments import refuse
from distlab.traces.events import Event
from distlab.wire.recorded import TorchRow

MARK = "Optimizer.step#"  # how torch names the range around an optimizer's step
TRAINING = ("forward", "backward")  # a step has some of it

Span = tuple[float, float]


@dataclass(frozen=True)
class Step:
    """One step of a training.

    Attributes:
        number: from 0.
        count: how many steps there are.
        spans: by rank, from the end of the optimizer step before to the end of its own.
    """

    number: int
    count: int
    spans: dict[int, Span]

    @property
    def window(self) -> Span:
        """From its first begin on any rank to its last end."""
        begins = [begin for begin, _ in self.spans.values()]
        ends = [end for _, end in self.spans.values()]
        return min(begins), max(ends)

    @property
    def name(self) -> str:
        """The step in words: "step 2 of 0-9"."""
        if self.count == 1:
            return "its only step"
        return f"step {self.number} of 0-{self.count - 1}"

    def has(self, event: Event) -> bool:
        """Whether an event of a rank began in the step of that rank."""
        if event.rank not in self.spans:
            return False
        begin, end = self.spans[event.rank]
        return begin <= event.start < end


def step_of(
    number: object, events: Sequence[Event], rows: Mapping[int, Sequence[TorchRow]]
) -> Step:
    """A step that all ranks with an optimizer have finished.

    Args:
        number: which one, from 0; -1 is the last one.
        events: of all ranks.
        rows: the profiler's, by rank.

    Raises:
        ArgumentError: there is no such step.
    """
    by_rank = {}
    for rank, own in rows.items():
        spans = _spans(own, [event for event in events if event.rank == rank])
        if spans:
            by_rank[rank] = spans
    if not by_rank:
        advice = "This trace has no mark of an optimizer's step()."
        refuse("step", "None", number, advice)
    count = min(len(spans) for spans in by_rank.values())
    rule = f"a whole number from {-count} to {count - 1}"
    advice = f"This trace has {count} optimizer steps; -1 is the last one."
    if count == 1:
        advice = "This trace has 1 optimizer step."
    if not isinstance(number, int) or isinstance(number, bool):
        refuse("step", rule, number, advice, wrong_type=True)
    if not -count <= number < count:
        refuse("step", rule, number, advice)
    place = number % count
    return Step(place, count, {rank: spans[place] for rank, spans in by_rank.items()})


def _spans(rows: Iterable[TorchRow], events: Sequence[Event]) -> list[Span]:
    """The steps of a rank.

    The first begins with the first forward pass, and any other one where the one before ends. What
    a second optimizer does, before anything else is trained, belongs to the step before.
    """
    training = [event.start for event in events if event.kind in TRAINING]
    spans: list[Span] = []
    for row in sorted(rows, key=lambda row: row.end):
        if not row.name.startswith(MARK):
            continue
        since = spans[-1][1] if spans else float("-inf")
        begun = [start for start in training if since <= start < row.start]
        if not spans:
            spans.append((min(begun, default=row.start), row.end))
        elif begun:
            spans.append((since, row.end))
        else:
            begin, _ = spans[-1]
            spans[-1] = (begin, row.end)
    return spans
