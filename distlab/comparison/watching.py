"""What is being watched: the record that grows, and what the files that look share.

Runs on every rank; called by watch.py, and by the files that look.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from distlab.comparison.naming import Naming
from distlab.comparison.patching import Patches
from distlab.comparison.places import Places, whole
from distlab.comparison.records import (
    MOST_SUMS,
    RankRecord,
    SeenParameter,
    SeenStep,
    Sketch,
    WatchOptions,
)
from distlab.comparison.sketches import sketch_of
from distlab.compat import torch_watching as private


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
        initial: parameters by id.
        steps: so far.
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
    initial: dict[int, SeenParameter] = field(default_factory=dict)
    steps: list[OpenStep] = field(default_factory=list)
    backward_passes: int = 0
    coarsest: float = 0.0
    has_messages: bool = False
    own_hook: str = ""
    thread: threading.local = field(default_factory=threading.local)

    @property
    def is_training(self) -> bool:
        """Whether this thread is in the call of a module that will have gradients.

        That was enabled where the outermost one was called; a function of autograd disables them.
        """
        return bool(self.modules) and self.thread.outermost.has_gradients

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
        self.initial[id(parameter)] = seen(parameter)

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


def has_values(parameter: torch.Tensor) -> bool:
    """Whether a parameter has numbers: it is not on the meta device, nor still to be made."""
    return not is_lazy(parameter) and private.has_storage(parameter)


def places_of(tensor: torch.Tensor) -> Places:
    """Which elements of a tensor this rank has."""
    if private.is_dtensor(tensor):
        return Places(tuple(tensor.shape), private.own_indices(tensor))
    shape = tuple(tensor.shape)
    if tensor.is_complex():
        shape = (*shape, 2)
    return whole(shape)


def sketched(tensor: torch.Tensor) -> Sketch:
    """The sketch of what this rank has of a tensor."""
    return sketch_of(private.own_part(tensor), places_of(tensor))


def seen_gradient(parameter: torch.Tensor) -> tuple[Sketch, bool]:
    """The sketch of a gradient, of the elements that this rank has of its parameter.

    Returns:
        sketch: of all elements that it has here, if it is partial or lacks some of the parameter's.
        is_partial: whether it is a summand of the gradient, instead of a part.
    """
    gradient = parameter.grad
    assert gradient is not None
    own = private.own_part(gradient)
    places = places_of(gradient)
    if not private.is_dtensor(gradient) or not private.is_dtensor(parameter):
        return sketch_of(own, places), False
    wanted = places_of(parameter)
    if wanted.piece == places.piece and not private.is_partial(gradient):
        return sketch_of(own, places), False
    numbers = places.numbers_of(wanted)
    if numbers is None or private.is_partial(gradient):
        return sketch_of(own, places), True
    for dimension, along in enumerate(numbers):
        own = own.index_select(dimension, along.to(own.device))
    return sketch_of(own, wanted), False


def seen(parameter: torch.Tensor) -> SeenParameter:
    """A parameter with the value that it has now; with zeros if that cannot be read."""
    places = places_of(parameter)
    if not has_values(parameter):
        elements = min(places.elements, MOST_SUMS)
        nothing = Sketch(np.zeros(elements), places.elements)
        return SeenParameter(tuple(parameter.shape), places.piece, nothing)
    value = sketch_of(private.own_part(parameter), places)
    return SeenParameter(tuple(parameter.shape), places.piece, value)
