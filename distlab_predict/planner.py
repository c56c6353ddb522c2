"""`predict.plan` searches for the best layout of a program. Runs on the notebook's kernel.

Called by predict.py, which says how choices are predicted; search.py says which ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from distlab import arguments, machine
from distlab.progress_bar import progress_bar
from distlab.simulated.network import Device, Network
from distlab_predict.interrupted import keeping
from distlab_predict.layouts import MARGIN, Layout, Step, continued_step, step_of
from distlab_predict.plans import Plan
from distlab_predict.prediction import Prediction
from distlab_predict.prediction_shown import gibibytes
from distlab_predict.reasons import percent
from distlab_predict.search import Need, Place, Search
from distlab_predict.uncertainty import compare

PLAN = (
    "Call distlab.predict.plan(program, ranks=64, network=..., device=..., tensor=[1, 2, 4, 8], "
    "recompute=['none', 'full'])."
)
NOT_ALLOWED = "allowed(...) is not True"
Choice = dict[str, Any]
# the prediction of each choice, or why there is none
Predict = Callable[[Sequence[Choice]], Sequence[Prediction | str]]


@dataclass(frozen=True)
class Depth:
    """Which argument of the program makes its model deeper, and how it is predicted.

    Attributes:
        name: of the argument.
        period: of a choice, how many layers can be left out without another balance of the rest.
    """

    name: str
    period: Callable[..., int]

    def few_and_more(self, ranks: int, choice: Choice) -> tuple[int, int]:
        """Two small numbers of layers to predict a choice with.

        Raises:
            ArgumentError: the period is no number of layers.
        """
        layers = choice[self.name]
        period = arguments.whole_number("period", self.period(ranks, **choice), 1)
        few = layers % period or period
        if few == 1:
            few += period  # a single layer is the first and the last one at once
        return few, few + period


class Cheap(NamedTuple):
    """How a layout is predicted.

    Attributes:
        choices: of the program, one or two.
        layers: how many times as far the layout is from the first choice as the second one is.
    """

    choices: list[Choice]
    layers: float = 0.0


def at_once() -> int:
    """How many programs are recorded together: while one ends, the others keep all cores busy."""
    return 2 * machine.cores()


class Planner:
    """Finds the best layout.

    Args:
        ranks: how many.
        choices: values for arguments of the program.
        allowed: of (ranks, **choice), True or a reason; None where everything is.
        depth: the argument that makes the model deeper; None to predict it whole.
        predict: predicts choices.
        limit: bytes of memory that a device has; None if that is not known.
    """

    def __init__(
        self,
        ranks: int,
        choices: Mapping[str, Sequence[Any]],
        allowed: Callable[..., bool | str] | None,
        depth: Depth | None,
        predict: Predict,
        limit: float | None,
    ) -> None:
        self._ranks = ranks
        self._choices = choices
        self._allowed = allowed
        self._depth = depth
        self._predict = predict
        self._limit = limit
        self._found: dict[Place, Layout] = {}
        # of the best two that fit, with their predictions; those of all would fill the memory
        self._leading: list[tuple[Layout, Prediction]] = []

    def plan(self, network: Network, device: Device) -> Plan:
        """The plan, on these machines, which `predict` takes, too.

        Raises:
            KeyboardInterrupt: a person stopped it; its `partial` is the plan of what was found.
        """

        def so_far() -> Plan:
            left = math.prod(map(len, self._choices.values())) - len(self._found)
            made = self._plan_of(tuple(self._found.values()), network, device)
            return replace(made, not_tried=left)

        with keeping(so_far, self._number_predicted, "layout"):
            layouts = self._layouts()
        return self._plan_of(layouts, network, device)

    def _number_predicted(self) -> int:
        """How many layouts have been predicted until now."""
        return sum(layout.step is not None for layout in self._found.values())

    def _plan_of(self, layouts: tuple[Layout, ...], network: Network, device: Device) -> Plan:
        """The plan with these layouts."""
        predictions = [prediction for _, prediction in self._leading]
        if not predictions:
            return Plan(layouts, network, device)
        best, *others = predictions
        _, longest = best.interval
        width = longest / best.seconds
        if not others:
            return Plan(layouts, network, device, width)
        found = compare(best, others[0])
        return Plan(layouts, network, device, width, lead=found.high / found.ratio)

    def _layouts(self) -> tuple[Layout, ...]:
        """Predict what is worth it, most promising first, and show how far that is."""
        places = list(itertools.product(*[range(len(values)) for values in self._choices.values()]))
        worth = [place for place in places if self._is_allowed(place)]
        search = Search(worth, self._limit, MARGIN)
        with progress_bar(len(worth)) as bar:
            while batch := search.next_places(at_once()):
                for place, layout in zip(batch, self._predicted(batch), strict=True):
                    self._found[place] = layout
                    search.note(place, _need_of(layout))
                    bar.update()
                bar.set_postfix_str(self._best_so_far())
        self._note_left_out(search)
        return tuple(self._found[place] for place in places)

    def _is_allowed(self, place: Place) -> bool:
        """Whether a place is to be tried; if not, its layout is noted."""
        choice = self._choice_of(place)
        if self._allowed is None:
            return True
        answer = self._allowed(self._ranks, **choice)
        if answer is True:
            return True
        why = NOT_ALLOWED
        if isinstance(answer, str) and answer.strip():
            why = answer
        self._found[place] = Layout(self._ranks, choice, None, why)
        return False

    def _predicted(self, batch: Iterable[Place]) -> list[Layout]:
        """Predict places, all at once."""
        choices = [self._choice_of(place) for place in batch]
        cheap = [self._cheap(choice) for choice in choices]
        asked = itertools.chain.from_iterable(one.choices for one in cheap)
        answers = iter(self._predict(list(asked)))
        layouts = []
        for choice, (few_choices, layers) in zip(choices, cheap, strict=True):
            own = [next(answers) for _ in few_choices]
            reasons = [answer for answer in own if isinstance(answer, str)]
            if reasons:
                layouts.append(Layout(self._ranks, choice, None, reasons[0]))
                continue
            predictions = [answer for answer in own if isinstance(answer, Prediction)]
            layout = Layout(self._ranks, choice, _step_from(predictions, layers))
            layouts.append(layout)
            if layout.fits:
                self._leading.append((layout, predictions[-1]))
        self._leading.sort(key=lambda pair: pair[0].rate, reverse=True)
        del self._leading[2:]
        return layouts

    def _cheap(self, choice: Choice) -> Cheap:
        """How a choice is predicted: as it is, or with two smaller numbers of layers."""
        if self._depth is None:
            return Cheap([choice])
        few, more = self._depth.few_and_more(self._ranks, choice)
        layers = choice[self._depth.name]
        if layers <= more:
            return Cheap([choice])
        choices = [{**choice, self._depth.name: depth} for depth in (few, more)]
        return Cheap(choices, (layers - few) / (more - few))

    def _choice_of(self, place: Place) -> Choice:
        pairs = zip(self._choices.items(), place, strict=True)
        return {name: values[number] for (name, values), number in pairs}

    def _best_so_far(self) -> str:
        """The best layout until now, in words, beside the bar."""
        fitting = [layout for layout in self._found.values() if layout.fits]
        if not fitting:
            return "none fits yet"
        best = max(fitting, key=lambda layout: layout.rate)
        return f"best so far: {best.name}"

    def _note_left_out(self, search: Search) -> None:
        """Make layouts of the places that were left out."""
        best = search.best_cost
        for place, outlook in search.left_out.items():
            if best is None or search.misses(outlook):
                why = f"would need {gibibytes(outlook.num_bytes)} or more"
            else:
                why = f"would take {percent(outlook.cost / best - 1)} longer or more"
            self._found[place] = Layout(self._ranks, self._choice_of(place), None, why, True)


def _step_from(predictions: Sequence[Prediction], layers: float) -> Step:
    """The step of a layout, from its prediction, or from those with few and more layers."""
    if len(predictions) == 1:
        return step_of(predictions[0])
    few, more = predictions
    return continued_step(few, more, layers)


def _need_of(layout: Layout) -> Need | None:
    if layout.step is None:
        return None
    return Need(layout.step.cost, layout.step.needed)
