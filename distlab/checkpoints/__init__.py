"""Checkpoints: a training that was stopped, or killed, goes on where it was.

Called on every rank; plain PyTorch, so the same code runs under `torchrun`. Notebook 05 builds the core of it.

Rank 0 writes for all. It writes beside the old file and puts the new one in its place at the end, so that whoever is
killed in between leaves the old one whole. Random numbers are each rank's own, so every rank's are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distlab.checkpoints.file import FORMAT, read, reason, write
from distlab.checkpoints.fitting import check_generators, check_model, check_optimizer, check_values, state_of
from distlab.checkpoints.randomness import generator_list, random_state, set_random_state
from distlab.errors import CheckpointError, DistlabError


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
    generators: torch.Generator | Sequence[torch.Generator] = (),
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
        generators: this rank's own, one or several, for example a DataLoader's. torch's and Python's default ones are
            saved anyway.
        values: more to be saved: numbers, texts, tensors, and lists and dicts of them; rank 0's count.

    Raises:
        CheckpointError: on every rank, if the file could not be written, or a value or a state cannot be saved so that
            `load` can read it.
    """
    path, problem, own = Path(path), None, None
    try:
        check_values(values)
        own = random_state(generator_list(generators))
    except DistlabError as error:
        problem = str(error)
    told = _gather((problem, own), group)
    _raise_first([problem for problem, _ in told])
    if _rank(group) == 0:
        try:
            state = {
                "format": FORMAT,
                "model": state_of("model", _inside(model)),
                "optimizer": None if optimizer is None else state_of("optimizer", optimizer),
                "kind": type(optimizer).__name__,
                "values": values,
                "random": [random_state for _, random_state in told],
            }
            write(path, state)
        except DistlabError as error:
            problem = str(error)
        except Exception as error:  # a full disk, a folder that may not be written
            kept = "What was there before is unchanged." if path.exists() else "Nothing was saved."
            problem = f"path must be a file that rank 0 can write, got {str(path)!r} ({reason(error)}). {kept}"
    _raise_first(_gather(problem, group))  # nobody goes on before the file is there


def load(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    generators: torch.Generator | Sequence[torch.Generator] = (),
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
        generators = generator_list(generators)
        state = read(path, map_location)
        check_model(path, state["model"], inside.state_dict())
        if optimizer is not None:
            check_optimizer(path, state, optimizer)
        check_generators(path, state["random"], generators)
    except DistlabError as error:
        problem = str(error)
    _raise_first(_gather(problem, group))
    inside.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    saved, here = len(state["random"]), _size(group)
    if saved == here:
        set_random_state(state["random"][_rank(group)], generators)
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


def _inside(model: nn.Module) -> nn.Module:
    """The model without its DistributedDataParallel, so that one process can load it as well."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _rank(group: Any) -> int:
    return dist.get_rank(group) if dist.is_initialized() else 0


def _size(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1


def _ranks(n: int) -> str:
    return "1 rank" if n == 1 else f"{n} ranks"
