"""Checkpoints: a training that was stopped, or killed, goes on where it was.

Called on every rank; plain PyTorch, so the same code runs under `torchrun`. Notebook 05 builds the core of it.

Rank 0 writes for all. It writes beside the old file and puts the new one in its place at the end, so that whoever is
killed in between leaves the old one whole. Random numbers are each rank's own, so every rank's are saved.
"""

from __future__ import annotations

import os
import random
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distlab.errors import CheckpointError, refuse

FORMAT = "distlab checkpoint 1"
PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor)


@dataclass(frozen=True)
class Resumed:
    """What a checkpoint had besides the states that `load` has put back.

    Args:
        values: what was given to `save` by name, for example the epoch.
        ranks: how many ranks saved it.
        changes: what is not as it was, in sentences; empty on as many ranks.
    """

    values: dict[str, Any]
    ranks: int
    changes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __repr__(self) -> str:
        names = ", ".join(self.values) or "nothing more"
        return "\n".join([f"Resumed: {names}; saved by {_ranks(self.ranks)}", *self.changes])


def save(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    generators: Sequence[torch.Generator] = (),
    group: Any = None,
    **values: Any,
) -> None:
    """Save a training; when it returns, on any rank, the file is on the disk and whole.

    The weights are those of rank 0, of the module inside where the model is a DistributedDataParallel. Whatever happens
    meanwhile, the file that was there before stays whole until the new one takes its place.

        checkpoints.save("digits.pt", model, optimizer, epoch=3)

    Runs on: every rank of the group (a rank that skips it hangs the rest); without a process group, anywhere.

    Args:
        path: of the file, in a folder that rank 0 can write; the folder is made if it is not there.
        generators: this rank's own, for example a DataLoader's. torch's and Python's default ones are saved anyway.
        values: more to be saved: numbers, texts, tensors, and lists and dicts of them; rank 0's count.

    Raises:
        CheckpointError: on every rank, if the file could not be written, or a value cannot be saved.
    """
    path, problem = Path(path), _unplain(values)
    told = _gather((problem, _random_state(generators)), group)
    _raise_first([problem for problem, _ in told])
    if _rank(group) == 0:
        state = {
            "format": FORMAT,
            "model": _inside(model).state_dict(),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
            "kind": type(optimizer).__name__,
            "values": values,
            "random": [random_state for _, random_state in told],
        }
        try:
            _write(path, state)
        except Exception as error:  # a full disk, a folder that may not be written
            kept = "What was there before is unchanged." if path.exists() else "Nothing was saved."
            problem = f"path must be a file that rank 0 can write, got {str(path)!r} ({_reason(error)}). {kept}"
    _raise_first(_gather(problem, group))  # nobody goes on before the file is there


def load(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    generators: Sequence[torch.Generator] = (),
    map_location: Any = None,
    group: Any = None,
) -> Resumed:
    """Put a saved training back into the model and the optimizer, in place, on every rank.

    On as many ranks as saved it, the training then goes on as if it had never stopped; to the last bit, if a
    DistributedDataParallel model was rehearsed before. On another number it goes on as well; `changes` of the result
    says what is not as it was.

        checkpoints.rehearse(ddp, images)
        epoch = checkpoints.load("digits.pt", ddp, optimizer)["epoch"]

    Runs on: every rank of the group (a rank that skips it hangs the rest); without a process group, anywhere.

    Args:
        path: of a file that `save` has written, which every rank can read.
        generators: as they were given to `save`, in the same order.
        map_location: the device of this rank; None for that of the model.

    Raises:
        CheckpointError: on every rank, if one cannot read the file, or it is of another model or optimizer. Neither
            model nor optimizer was changed then.
    """
    path, state, problem = Path(path), {}, None
    inside = _inside(model)
    if map_location is None:
        map_location = next((parameter.device for parameter in inside.parameters()), torch.device("cpu"))
    try:
        state = _read(path, map_location)
        _check_model(path, state["model"], inside.state_dict())
        if optimizer is not None:
            _check_optimizer(path, state, optimizer)
        _check_generators(path, state["random"], generators)
    except CheckpointError as error:
        problem = str(error)
    _raise_first(_gather(problem, group))
    inside.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    saved, here = len(state["random"]), _size(group)
    if saved == here:
        _set_random_state(state["random"][_rank(group)], generators)
    return Resumed(state["values"], saved, _changes(saved, here))


def rehearse(model: nn.Module, *inputs: Any) -> None:
    """Go forward and backward once and throw the gradients away, before `load`.

    DistributedDataParallel sorts its buckets anew after its first backward. Where a gradient lies in its bucket decides
    in which order its parts are added, and so its last bits. A training that goes on must not repeat that first step.

    Runs on: every rank of the group (a rank that skips it hangs the rest). Buffers and random numbers are used up;
    `load` puts them back.

    Args:
        inputs: of the model, a batch of any size.
    """
    model(*inputs).sum().backward()
    model.zero_grad(set_to_none=True)


# --- the file ---


def _write(path: Path, state: Mapping[str, Any]) -> None:
    """Write beside the file, make sure that it is on the disk, then put it in the file's place at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")  # the same name next time: what a kill leaves does not pile up
    try:
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # the new name must outlive a power failure, too
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read(path: Path, map_location: Any) -> dict[str, Any]:
    """What a file holds; CheckpointError where it is not a whole checkpoint."""
    if not path.is_file():
        raise CheckpointError(
            f"path must be the file of a checkpoint, got {str(path)!r}, which is not there. "
            "Save one first: checkpoints.save(path, model, optimizer)."
        )
    try:
        if not zipfile.is_zipfile(path):
            raise EOFError("its end is missing, or it is no file of torch.save")
        with path.open("rb") as file:
            state = torch.load(file, map_location=map_location, weights_only=True)
    except Exception as error:
        what = f"got {str(path)!r}, whose {path.stat().st_size} bytes cannot be read ({_reason(error)})"
        raise CheckpointError(f"path must be a whole checkpoint, {what}. Load an older one, or begin anew.") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = f"the keys {', '.join(map(repr, state))}" if isinstance(state, dict) else f"a {type(state).__name__}"
        raise CheckpointError(
            f"path must be a file that checkpoints.save has written, got {str(path)!r} with {found}. "
            "Load it with torch.load."
        )
    return state


# --- does it fit? ---


def _check_model(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for key in {**own, **saved}:
        have, want = _shape(saved.get(key)), _shape(own.get(key))
        if have != want:
            what = f"{key!r}, which is {have} there and {want} in the model"
            advice = "Build the model as it was when it was saved."
            raise CheckpointError(f"path must be a checkpoint of this model, got {str(path)!r} with {what}. {advice}")


def _check_optimizer(path: Path, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
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


def _check_generators(path: Path, states: Sequence[Mapping[str, Any]], generators: Sequence[torch.Generator]) -> None:
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


def _changes(saved: int, here: int) -> tuple[str, ...]:
    """What is not as it was on another number of ranks."""
    if saved == here:
        return ()
    return (
        f"It was saved by {_ranks(saved)} and goes on with {here}, so it will not be equal to the last bit.",
        f"Global batch: {here} / {saved} of what it was, unless each rank's batch is changed to keep it.",
        f"Data: the samples of an epoch are dealt to {here} instead of {saved}, so each rank has others.",
        "Random numbers: each rank goes on with its own, which were not saved by these ranks.",
    )


# --- random numbers ---


def _random_state(generators: Sequence[torch.Generator]) -> dict[str, Any]:
    """The states of this rank's generators, as plain values."""
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "generators": [generator.get_state() for generator in generators],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tolist(), *map(float, rest)]
    return state


def _set_random_state(state: Mapping[str, Any], generators: Sequence[torch.Generator]) -> None:
    torch.set_rng_state(state["torch"].cpu())
    random.setstate(state["python"])
    for generator, saved in zip(generators, state["generators"], strict=True):
        generator.set_state(saved.cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    if "numpy" in state and "numpy" in sys.modules:
        kind, keys, place, has_gauss, gauss = state["numpy"]
        sys.modules["numpy"].random.set_state((kind, keys, int(place), int(has_gauss), gauss))


# --- the ranks ---


def _gather(value: Any, group: Any) -> list[Any]:
    """The values of all ranks, on all ranks; each waits for all."""
    if not dist.is_initialized():
        return [value]
    values = [None] * _size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _raise_first(problems: Sequence[str | None]) -> None:
    """Raise the problem of the first rank that has one, on every rank: none must go on alone."""
    for problem in problems:
        if problem is not None:
            raise CheckpointError(problem)


def _unplain(values: Mapping[str, Any]) -> str | None:
    """What is wrong with the first value that could not be loaded safely."""
    for name, value in values.items():
        if not _is_plain(value):
            rule = "a number, a text, a tensor, or lists and dicts of them"
            try:
                refuse(name, rule, value, "Give its state_dict(), or a plain value.", wrong_type=True)
            except TypeError as error:
                return str(error)
    return None


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) in (dict, OrderedDict):
        return all(map(_is_plain, [*value, *value.values()]))
    return type(value) in PLAIN


def _inside(model: nn.Module) -> nn.Module:
    """The model without its DistributedDataParallel, so that one process can load it as well."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _rank(group: Any) -> int:
    return dist.get_rank(group) if dist.is_initialized() else 0


def _size(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1


def _ranks(n: int) -> str:
    return "1 rank" if n == 1 else f"{n} ranks"


def _reason(error: BaseException) -> str:
    first = str(error).strip().splitlines()[:1] or [""]
    return f"{type(error).__name__}: {first[0][:120]}".rstrip(": ")
