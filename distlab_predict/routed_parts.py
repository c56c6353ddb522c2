"""Marks of what a router has chosen, where experts are taken together: those of a rank, or a host.

Called by torch_routing.py, for operators of a rank that is recorded. A mask of the experts of each
token says of which ranks it has any (`any` over those of a rank), and so do the numbers of experts
divided by how many a rank has. How often that is, drawn.py knows.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from torch import Tensor

from distlab_predict.drawn import Drawn
from distlab_predict.routing import Choice, Mark, Mask, Scores, mark_of, routing_of


def choice_of(scores: Tensor, places: Tensor) -> Choice:
    """The mark of the places of the highest scores in each row."""
    options = scores.shape[-1]
    drawn = Drawn(options, places.shape[-1] if places.dim() == scores.dim() else 1)
    mark = mark_of(scores)
    if isinstance(mark, Scores) and options % mark.groups == 0:
        drawn = replace(drawn, groups=mark.groups, groups_chosen=mark.groups_chosen)
    return Choice(options, drawn)


def scattered(args: Any, made: Tensor) -> Mask | None:
    """The mark of what has a number in the places of choices, and another one elsewhere."""
    _, dim, index, value = args[:4]
    choice = mark_of(index)
    if not isinstance(choice, Choice) or isinstance(value, Tensor):
        return None
    drawn = choice.drawn
    is_of_rows = dim % made.dim() == made.dim() - 1 and made.shape[-1] == choice.options
    if drawn is None or not is_of_rows or index.shape[-1] != drawn.chosen:
        return Mask(index.numel() / max(1, made.numel())) if value == 1 else None
    share = drawn.reached()
    if value == 1:
        if drawn.each > 1:
            _note(index, drawn)
        return Mask(share, drawn)
    if value == 0 and drawn.each == 1 and drawn.groups == 1:  # the ones are those not chosen
        return Mask(1 - share, replace(drawn, chosen=drawn.options - drawn.chosen))
    return None


def _any(args: Any, kwargs: Any) -> Mask | None:
    """Whether a token has any expert of some that are side by side."""
    mask = args[0]
    mark = mark_of(mask)
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if not isinstance(mark, Mask) or mark.drawn is None or not isinstance(dim, int):
        return None
    each = mask.shape[-1]
    is_of_row = mask.shape[-2:].numel() == mark.drawn.parts  # the mask is a view of one by tokens
    if dim % mask.dim() != mask.dim() - 1 or not is_of_row:
        return None
    drawn = replace(mark.drawn, each=mark.drawn.each * each)
    _note(mask, drawn)
    return Mask(drawn.reached(), drawn)


def _divided(args: Any, kwargs: Any) -> Choice | None:
    """The number of a part, if those of experts are divided by how many it has."""
    numbers, each = args[:2]
    mark = mark_of(numbers)
    if not isinstance(mark, Choice) or not isinstance(each, int) or each < 1:
        return None
    if numbers.is_floating_point() or mark.options % each or mark.drawn is None:
        return None
    return Choice(mark.options // each, replace(mark.drawn, each=mark.drawn.each * each))


def _div(args: Any, kwargs: Any) -> Choice | None:
    return _divided(args, kwargs) if kwargs.get("rounding_mode") == "floor" else None


def _masked_fill(args: Any, kwargs: Any) -> Mark | None:
    """Scores that are left of the chosen groups alone."""
    _, mask, value = args[:3]
    mark = mark_of(mask)
    if not isinstance(mark, Mask) or mark.drawn is None or isinstance(value, Tensor):
        return None
    drawn = mark.drawn
    if value != -inf or drawn.each > 1:
        return None
    return Scores(drawn.options, drawn.options - drawn.chosen)


def _note(tensor: Any, drawn: Drawn) -> None:
    routing = routing_of(tensor)
    routing.used = True
    routing.drawn[drawn] = None


OF_PARTS: dict[str, Callable[[Any, Any], Mark | None]] = {
    "any": _any,
    "div": _div,
    "floor_divide": _divided,
    "masked_fill": _masked_fill,
}
