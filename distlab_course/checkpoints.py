"""Checkpoints: a training that was stopped, or killed, continues where it was.

Called on every rank; plain PyTorch, so the same code runs under `torchrun`. Lab 22 builds the core
of it.

Rank 0 writes for all. It writes beside the old file and puts the new one in its place at the end,
so that a rank that is killed in between leaves the old one whole. Random numbers are each rank's
own, so every rank's are saved.
"""

import contextlib
import os
import random
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.serialization import get_unsafe_globals_in_checkpoint

from distlab.errors import CheckpointError, DistlabError

FORMAT = "distlab checkpoint 2"


@dataclass(frozen=True)
class Resumed:
    """What a checkpoint had besides the states that `load` has put back.

    Args:
        values: what was given to `save` by name, for example the epoch.
        ranks: how many ranks saved it.
        changes: what is not as it was, in sentences; empty on the same number of ranks.
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
    path: str | Path, model: nn.Module, optimizer: Optimizer | None = None, **values: Any
) -> None:
    """Save a training; when it returns, on any rank, the file is on the disk and whole.

    The weights are those of rank 0, of the module inside where the model is a
    DistributedDataParallel.

        checkpoints.save("digits.pt", model, optimizer, epoch=3)

    Runs on: every rank (one that skips it hangs the rest); without a process group, anywhere.

    Args:
        path: of the file, in a folder that rank 0 can write; the folder is made if it is not there.
        values: more to be saved: numbers, texts, tensors, and lists and dicts of them; rank 0's
            count.

    Raises:
        CheckpointError: on every rank, if rank 0 could not write the file, or `load` could not read
            what is in it.
    """
    random_states = _gather(_random_state())
    rank, _ = _place()
    with _together():  # no rank continues before the file is there
        if rank == 0:
            optimizer_state = None
            if optimizer is not None:
                optimizer_state = optimizer.state_dict()
            state = {
                "format": FORMAT,
                "model": _inside(model).state_dict(),
                "optimizer": optimizer_state,
                "kind": _kind_of(optimizer),
                "values": values,
                "random": random_states,
            }
            _write(Path(path), state)


def load(path: str | Path, model: nn.Module, optimizer: Optimizer | None = None) -> Resumed:
    """Put a saved training back into the model and the optimizer, in place, on every rank.

    On as many ranks as saved it, the training then continues as if it had never stopped; to the
    last bit, if a DistributedDataParallel model was rehearsed before. On another number, `changes`
    of the result says what differs.

        checkpoints.rehearse(ddp, images)
        epoch = checkpoints.load("digits.pt", ddp, optimizer)["epoch"]

    Runs on: every rank (one that skips it hangs the rest); without a process group, anywhere.

    Args:
        path: of a file that `save` has written, which every rank can read. Tensors in its `values`
            come to the CPU; model and optimizer stay where they are.

    Raises:
        CheckpointError: on every rank, if one cannot read the file, or it does not fit; nothing was
            changed then.
    """
    inside = _inside(model)
    with _together():
        state = _read(Path(path))
        _check(Path(path), state, inside, optimizer)
    inside.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    rank, here = _place()
    saved = len(state["random"])
    if saved == here:
        _set_random_state(state["random"][rank])
        return Resumed(state["values"], saved)
    return Resumed(state["values"], saved, _changes(saved, here))


def _changes(saved: int, here: int) -> tuple[str, ...]:
    """What is not as it was on another number of ranks, in sentences."""
    return (
        f"It was saved by {_ranks(saved)} and continues with {here}, "
        "so it will not be equal to the last bit.",
        f"Global batch: {here} / {saved} of what it was, "
        "unless each rank's batch is changed to keep it.",
        f"Data: the samples of an epoch are dealt to {here} instead of {saved}, "
        "so each rank has others.",
        "Random numbers: each rank continues with its own, which were not saved by these ranks.",
    )


def rehearse(model: nn.Module, *inputs: Any) -> None:
    """Go forward and backward once and throw the gradients away, before `load`.

    DistributedDataParallel sorts its buckets again after its first backward. Where a gradient lies
    in its bucket decides in which order its parts are added, and so its last bits. A training that
    continues must not repeat that first step. What the rehearsal changes, buffers and random
    numbers, `load` puts back.

    Runs on: every rank (one that skips it hangs the rest).

    Args:
        inputs: of the model, a batch of any size.
    """
    model(*inputs).sum().backward()
    model.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Raise the error of the first rank that has one, on every rank: none must go on alone."""
    problem = None
    try:
        yield
    except DistlabError as error:
        problem = str(error)
    except Exception as error:  # another's, such as that of a sharded optimizer without whole state
        problem = _reason(error)
    for one in _gather(problem):
        if one:
            raise CheckpointError(one)


def _gather(value: Any) -> list[Any]:
    """The values of all ranks, on all ranks; each waits for all."""
    _, world_size = _place()
    values = [value] * world_size
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values


def _place() -> tuple[int, int]:
    """This rank's number, and how many ranks there are."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def _ranks(n: int) -> str:
    if n == 1:
        return "1 rank"
    return f"{n} ranks"


def _write(path: Path, state: Mapping[str, Any]) -> None:
    """Write beside the file, see that it is on the disk, and put it in the file's place at once."""
    # the same name next time: what a kill leaves does not pile up
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        _check_readable(partial)
        os.replace(partial, path)
    except Exception as error:  # a full disk, a folder that may not be written
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, CheckpointError):
            raise
        kept = "Nothing was saved."
        if path.exists():
            kept = "What was there before is unchanged."
        _refuse(path, "a file that rank 0 can write", f" ({_reason(error)})", kept)


def _check_readable(file: Path) -> None:
    """Refuse a file with objects that torch does not unpickle from a file it does not trust."""
    unsafe = get_unsafe_globals_in_checkpoint(file)
    if unsafe:
        rule = "numbers, texts, tensors, and lists and dicts of them"
        advice = "Give the state_dict() of an object, and plain values such as float(x)."
        raise CheckpointError(f"What is saved must be {rule}, got {', '.join(unsafe)}. {advice}")


def _read(path: Path) -> dict[str, Any]:
    """What a file holds; CheckpointError where it is not a whole checkpoint."""
    if not path.is_file():
        todo = "Save one first: checkpoints.save(path, model, optimizer)."
        _refuse(path, "the file of a checkpoint", ", which is not there", todo)
    try:
        if not zipfile.is_zipfile(path):
            raise EOFError("its end is missing, or it is not a file of torch.save")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        found = f", whose {path.stat().st_size} bytes cannot be read ({_reason(error)})"
        _refuse(path, "a whole checkpoint", found, "Load an older one, or begin anew.")
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        rule = "a file that checkpoints.save has written"
        _refuse(path, rule, ", which is another", "Load it with torch.load.")
    return state


def _check(
    path: Path, state: Mapping[str, Any], model: nn.Module, optimizer: Optimizer | None
) -> None:
    """Compare what was saved with the model and the optimizer.

    torch would change them before it complains.
    """
    own = model.state_dict()
    saved = state["model"]
    for key in {**own, **saved}:
        have = _shape(saved.get(key))
        want = _shape(own.get(key))
        if have != want:
            found = f" with {key!r}, which is {have} there and {want} in the model"
            advice = "Build the model as it was when it was saved."
            _refuse(path, "a checkpoint of this model", found, advice)
    if optimizer is not None and state["kind"] != _kind_of(optimizer):
        found = f" with {state['kind']}, and the optimizer is {_kind_of(optimizer)}"
        advice = "Make the optimizer as it was, or load(path, model) for the weights alone."
        _refuse(path, "a checkpoint of this optimizer", found, advice)


def _refuse(path: Path, rule: str, found: str, advice: str) -> NoReturn:
    raise CheckpointError(f"path must be {rule}, got {str(path)!r}{found}. {advice}")


def _reason(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first[:120]}".rstrip(": ")


def _inside(model: nn.Module) -> nn.Module:
    """The model without its DistributedDataParallel, so that one process can load it as well."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.module
    return model


def _shape(value: Any) -> str:
    """The dtype and shape of a tensor, or what it is instead of one."""
    if value is None:
        return "missing"
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype}{list(value.shape)}"


def _kind_of(optimizer: Optimizer | None) -> str:
    """What two optimizers must have in common: their class, and parameters in each group."""
    if optimizer is None:
        return "no optimizer"
    counts = [str(len(group["params"])) for group in optimizer.param_groups]
    return f"{type(optimizer).__name__} of {' + '.join(counts)} parameters"


def _random_state() -> dict[str, Any]:
    """What this rank's generators of random numbers go on with, as plain values."""
    state = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"].cpu())
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
