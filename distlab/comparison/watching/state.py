"""What is being watched: the record that grows, and what the files that look share.

Runs on every rank; called by watch.py, and by the files that look.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from distlab.comparison.records import (
    RankRecord,
    SeenParameter,
    SeenStep,
    WatchOptions,
)
from distlab.comparison.watching.flat_parameters import FlatPart
from distlab.comparison.watching.naming import Naming
from distlab.comparison.watching.patching import Patches
from distlab.comparison.watching.seen_tensors import has_values, seen

# of 8 bytes, in the sketches of a rank; further steps are not kept
MOST_NUMBERS = 2**24


@dataclass
class OpenStep:
    """A step, whose parameters are still known by their ids.

    Attributes:
        seen: the step without its parameters.
        parameters: by id.
        others: by id.
    """

    seen: SeenStep
    parameters: dict[int, SeenParameter] = field(default_factory=dict)
    others: dict[int, SeenParameter] = field(default_factory=dict)


@dataclass
class Watching:
    """A program that is being watched on this rank.

    Attributes:
        options: how.
        record: what was seen so far, without parameters.
        naming: of parameters.
        patches: what was replaced in torch.
        flat: the parts of flat parameters, by the id of the parameter that optimizers have.
        initial: parameters by id.
        steps: so far, but for those that are not kept.
        number_of_steps: so far.
        backward_passes: how many began so far.
        coarsest: the largest epsilon of a type that was seen; 0 if none was.
        has_messages: whether the program has sent or received one.
        own_hook: the name of a communication hook of DDP's that the program has made itself; ""
            without one.
        thread: what a thread is in, see forwards.py.
    """

    options: WatchOptions
    record: RankRecord
    naming: Naming = field(default_factory=Naming)
    patches: Patches = field(default_factory=Patches)
    flat: dict[int, list[FlatPart]] = field(default_factory=dict)
    initial: dict[int, SeenParameter] = field(default_factory=dict)
    steps: list[OpenStep] = field(default_factory=list)
    number_of_steps: int = 0
    backward_passes: int = 0
    coarsest: float = 0.0
    has_messages: bool = False
    own_hook: str = ""
    thread: threading.local = field(default_factory=threading.local)
    _kept_numbers: int = 0

    @property
    def rows_in_training(self) -> int | None:
        """How many rows the module has that is called now and will have gradients; or None.

        That was decided where it was called: a function of autograd has no gradients inside.
        """
        if not self.modules or not self.thread.outermost.has_gradients:
            return None
        return len(self.thread.outermost.rows)

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that this thread is in, outermost first."""
        if not hasattr(self.thread, "modules"):
            self.thread.modules = []
        return self.thread.modules

    def see_initial(self, parameter: torch.Tensor) -> None:
        """Note the value that a parameter has before the first step."""
        if id(parameter) in self.initial or not has_values(parameter):
            return
        if id(parameter) in self.flat:
            for part in self.flat[id(parameter)]:
                if id(part) not in self.initial:
                    self.initial[id(part)] = part.seen()
            return
        self.initial[id(parameter)] = seen(parameter)

    @property
    def is_full(self) -> bool:
        """Whether the sketches take so much memory that no further step is kept."""
        return self._kept_numbers > MOST_NUMBERS

    def add_unkept_step(self) -> None:
        """Count a step, and say that it is not kept."""
        self.number_of_steps += 1
        self.note_unseen(f"Of the steps, only the first {len(self.steps)} were looked at.")

    def add_step(self, step: OpenStep) -> None:
        """Keep a step."""
        self.number_of_steps += 1
        self.steps.append(step)
        self.count_numbers((*step.parameters.values(), *step.others.values()))

    def count_numbers(self, parameters: Iterable[SeenParameter]) -> None:
        """Count the numbers that are kept of parameters."""
        for parameter in parameters:
            for sketch in (parameter.value, parameter.gradient, parameter.own_gradient):
                if sketch is not None:
                    self._kept_numbers += len(sketch.sums)

    def note_unseen(self, sentence: str) -> None:
        """Note that something could not be looked at."""
        if sentence not in self.record.unseen:
            self.record.unseen.append(sentence)

    @contextlib.contextmanager
    def careful(self, what: str) -> Iterator[None]:
        """Note that something could not be looked at, if looking raises: the program goes on."""
        try:
            yield
        except Exception as error:
            self.note_unseen(f"{what} could not be looked at: {type(error).__name__}: {error}")

    def coarsen(self, dtype: torch.dtype) -> None:
        """Note that something was computed in this type."""
        if dtype.is_floating_point:
            self.coarsest = max(self.coarsest, torch.finfo(dtype).eps)

    @property
    def epsilon(self) -> float:
        """Of the coarsest type that was seen; that of float32 if none was."""
        return self.coarsest or torch.finfo(torch.float32).eps

    def finish(self) -> RankRecord:
        """End the watching, and return the record with the parameters under their names."""
        self.patches.end()
        self.record.epsilon = self.epsilon
        names = self.naming.names()
        self.record.initial = _by_name(self.initial, names)
        for step in self.steps:
            stepped = _by_name(step.parameters, names)
            others = _by_name(step.others, names)
            self.record.steps.append(replace(step.seen, parameters=stepped, others=others))
        self.steps = []
        return self.record


def _by_name(
    parameters: dict[int, SeenParameter], names: dict[int, str]
) -> dict[str, SeenParameter]:
    named: dict[str, SeenParameter] = {}
    for key, parameter in parameters.items():
        if key in names:
            named.setdefault(names[key], parameter)
    return named
