"""A finding: one way in which a program is not the same, or cannot be compared.

Plain values, made by the files that judge.py calls. Runs anywhere; needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from distlab.wire.source import Line


class Cause(Enum):
    """Why a program is not the same as in one process.

    They are in the order in which a comparison looks: an earlier one explains later ones.
    """

    UNREPEATABLE = "one process alone does not do the same twice"
    NO_STEP = "no optimizer stepped"
    RANDOM_DATA = "ranks draw their data without a common seed"
    UNDIVIDED = "the ranks do not divide the work"
    LARGER_BATCH = "the batch grows with the number of ranks"
    OTHER_STEPS = "the ranks make another number of steps"
    SAME_ROWS = "some ranks have the same rows"
    ROWS_REPEATED = "rows are used twice, or never"
    ROWS_DIFFER = "the ranks use other rows"
    SAME_ORDER = "every epoch has the same order"
    EVALUATION_ROWS = "evaluation counts rows twice, or misses some"
    NOTHING_MOVED = "step() changes no parameter"
    OTHER_INITIAL = "the replicas begin with other values"
    NOT_AVERAGED = "nothing averages the gradients"
    PARTLY_AVERAGED = "some gradients are averaged, others are not"
    REPLICAS_DIFFER = "the replicas are not equal"
    GRADIENT_FACTOR = "the gradient is a multiple of the right one"
    UNEQUAL_PARTS = "a mean of means over unequal parts"
    GRADIENT_DIFFERS = "the gradient is another one"
    STEP_FACTOR = "the steps are a multiple of the right ones"
    STEP_DIFFERS = "equal gradients, and other steps"
    LOSS_DIFFERS = "the loss is another one"
    SAME_DROPOUT = "all ranks draw the same dropout masks"
    LOCAL_STATISTICS = "batch normalisation over local batches"
    NOT_FINITE = "numbers that are not finite"
    NOT_SEEN = "something could not be looked at"


@dataclass(frozen=True)
class Finding:
    """One difference, or one reason why nothing can be said.

    Attributes:
        cause: which.
        sentence: what was found, for a person; one sentence that names the cause.
        details: further sentences: numbers, ranks, usual reasons, what to do.
        world_size: of the world in which it was found; 0 for one process.
        step: counted from 0; None where it is of no step.
        parameters: names of those that show it.
        factor: by which the gradient, or the step, is too large; None without one.
        ranks: those that it is about; all if empty.
        lines: the learner's lines to look at.
        meanings: what the factor may mean, the likeliest first, such as "1 / ranks".
        hinders: whether it only says that something cannot be compared, and proves no mistake.
    """

    cause: Cause
    sentence: str
    details: tuple[str, ...] = ()
    world_size: int = 0
    step: int | None = None
    parameters: tuple[str, ...] = ()
    factor: float | None = None
    ranks: tuple[int, ...] = ()
    lines: tuple[Line, ...] = ()
    hinders: bool = False
    meanings: tuple[str, ...] = ()
