"""Does a checkpoint fit: values and states that can be saved, a model, an optimizer and generators as they were.

Called on every rank; plain PyTorch.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from distlab.checkpoints.file import reason
from distlab.errors import CheckpointError, refuse

PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor)


def check_model(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for key in {**own, **saved}:
        have, want = _shape(saved.get(key)), _shape(own.get(key))
        if have != want:
            what = f"{key!r}, which is {have} there and {want} in the model"
            advice = "Build the model as it was when it was saved."
            raise CheckpointError(f"path must be a checkpoint of this model, got {str(path)!r} with {what}. {advice}")


def check_optimizer(path: Path, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    if state["optimizer"] is None:
        have, want = "no optimizer", type(optimizer).__name__
    else:
        groups = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
        own = [len(group["params"]) for group in optimizer.param_groups]
        have = f"{state['kind']} of {_counted(groups)}"
        want = f"{type(optimizer).__name__} of {_counted(own)}"
    if have != want:
        advice = "Make the optimizer as it was, or load(path, model) for the weights alone."
        what = f"got {str(path)!r} with {have}, and the optimizer is {want}"
        raise CheckpointError(f"path must be a checkpoint of this optimizer, {what}. {advice}")


def check_generators(path: Path, states: Sequence[Mapping[str, Any]], generators: Sequence[torch.Generator]) -> None:
    saved = len(states[0]["generators"])
    if saved != len(generators):
        what = f"got {str(path)!r} with {saved}, and {len(generators)} of them here"
        raise CheckpointError(
            f"path must be a checkpoint with as many generators, {what}. Give those that were given to save."
        )


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "missing" if value is None else type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _counted(groups: Sequence[int]) -> str:
    return " + ".join(map(str, groups)) + " parameters"


def check_values(values: Mapping[str, Any]) -> None:
    """Refuse the first value that could not be loaded safely."""
    for name, value in values.items():
        if not _is_plain(value):
            rule = "a number, a text, a tensor, or lists and dicts of them"
            refuse(name, rule, value, "Give its state_dict(), or a plain value.", wrong_type=True)


def state_of(name: str, part: nn.Module | torch.optim.Optimizer) -> Any:
    """The state of a model or an optimizer; refused where there is none now, or `load` could not read it back."""
    try:
        state = part.state_dict()
    except Exception as error:  # a ZeroRedundancyOptimizer that is not consolidated
        what = f"got a {type(part).__name__} ({reason(error)})"
        advice = "Do what it asks for on every rank, then save again."
        raise CheckpointError(f"{name} must have a state that rank 0 can take, {what}. {advice}") from error
    for key, value in _leaves(f"{name}.state_dict()", state):
        if not _can_be_loaded(value):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            advice = f"It is a {kind}: make it a plain value, for example with float()."
            refuse(key, "a value that torch.load reads with weights_only=True", value, advice, wrong_type=True)
    return state


def _leaves(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a state consists of, each with the way to it."""
    if type(value) in (list, tuple):
        for place, item in enumerate(value):
            yield from _leaves(f"{where}[{place}]", item)
    elif type(value) in (dict, OrderedDict):
        for key, item in value.items():
            yield f"a key of {where}", key
            yield from _leaves(f"{where}[{key!r}]", item)
        for name, item in getattr(value, "__dict__", {}).items():  # a module's state has its versions so
            yield from _leaves(f"{where}.{name}", item)
    else:
        yield where, value


def _can_be_loaded(value: Any) -> bool:
    """Whether a value is plain, or another that torch.load trusts, which is tried out."""
    if _is_plain(value):
        return True
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception:
        return False
    return True


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) in (dict, OrderedDict):
        return all(map(_is_plain, [*value, *value.values()]))
    return type(value) in PLAIN
