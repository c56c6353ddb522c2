"""A learner's train.py, as lab 08 runs it to check it, with notes of what it does.

torchrun starts `python watched_training.py train.py 4 checkpoint.pt` as each rank, in a folder
where the notes are left: a file for each rank and attempt. With KILL_AFTER in the environment,
rank 1 kills itself, in the first attempt only, as soon as it has read that many samples.
exercises/train_scripts.py reads the notes. It is plain PyTorch.
"""

import atexit
import json
import os
import runpy
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.optim import optimizer as optimizers

from distlab_course.data import ImageSet


@dataclass
class Notes:
    """What one rank did in one attempt.

    Attributes:
        world_size: of the group in which it took its steps; 0 without a group.
        steps: by step, the indices of the samples that it had read for it.
        losses: by call of backward.
        saves, loads: how often it called torch.save, and torch.load.
        restored: which of "model" and "optimizer" have loaded a state.
        weights: after each step, the sum of the sizes of all weights.
    """

    world_size: int = 0
    steps: list[list[int]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    saves: int = 0
    loads: int = 0
    restored: list[str] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


class Watch:
    """Takes the notes of this process while the script runs."""

    def __init__(self, kill_after: int):
        self.notes = Notes()
        self._kill_after = kill_after
        self._read: list[int] = []  # since the last step
        self._count = 0  # of all samples read

    def note_batch(self, samples: ImageSet, indices: Any) -> Any:
        """Read some samples, and remember which."""
        numbers = torch.arange(len(samples))[torch.as_tensor(indices)]
        self._read += numbers.reshape(-1).tolist()
        self._count += numbers.numel()
        if 0 < self._kill_after <= self._count:
            os.kill(os.getpid(), signal.SIGKILL)
        return _read_batch(samples, indices)

    def note_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After a step, note what it was made of and where it has led."""
        self.notes.steps.append(self._read)
        self._read = []
        if dist.is_initialized():
            self.notes.world_size = dist.get_world_size()
        total = 0.0
        for group in optimizer.param_groups:
            total += sum(weight.detach().abs().sum().item() for weight in group["params"])
        self.notes.weights.append(total)

    def note_loss(self, loss: torch.Tensor, *arguments: Any, **options: Any) -> None:
        """Note a loss, and compute its gradients."""
        self.notes.losses.append(loss.item())
        _compute_gradients(loss, *arguments, **options)

    def note_save(self, *arguments: Any, **options: Any) -> None:
        """Note that this rank writes a file, and write it."""
        self.notes.saves += 1
        _write(*arguments, **options)

    def note_load(self, *arguments: Any, **options: Any) -> Any:
        """Note that this rank reads a file, and read it."""
        self.notes.loads += 1
        return _load(*arguments, **options)

    def note_model(self, *arguments: Any, **options: Any) -> Any:
        """Note that a model gets the weights of a checkpoint."""
        self.notes.restored.append("model")
        return _restore_model(*arguments, **options)

    def note_optimizer(self, *arguments: Any, **options: Any) -> Any:
        """Note that an optimizer gets the state of a checkpoint."""
        self.notes.restored.append("optimizer")
        return _restore_optimizer(*arguments, **options)


_read_batch = ImageSet.batch
_compute_gradients = torch.Tensor.backward
_write = torch.save
_load = torch.load
_restore_model = torch.nn.Module.load_state_dict
_restore_optimizer = torch.optim.Optimizer.load_state_dict


def method_of(note: Any) -> Any:
    """A plain function, which becomes a method where it stands in a class."""

    def noted(*arguments: Any, **options: Any) -> Any:
        return note(*arguments, **options)

    return noted


def main() -> None:
    """Run the script that the command line names, with its arguments, as if nobody watched."""
    # before the group is made, as a script with torch 2.13 should
    import torch._dynamo

    rank = os.environ["RANK"]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    kill_after = 0
    if (rank, attempt) == ("1", "0"):
        kill_after = int(os.environ.get("KILL_AFTER", 0))
    watch = Watch(kill_after)
    path = Path(f"notes-{rank}-{attempt}.json").resolve()
    atexit.register(lambda: path.write_text(json.dumps(asdict(watch.notes))))
    optimizers.register_optimizer_step_post_hook(watch.note_step)
    sys.argv = sys.argv[1:]
    sys.path[0] = os.getcwd()  # where the script is, as if Python had been started with it
    with (
        mock.patch.object(ImageSet, "batch", method_of(watch.note_batch)),
        mock.patch.object(torch.Tensor, "backward", method_of(watch.note_loss)),
        mock.patch.object(torch.nn.Module, "load_state_dict", method_of(watch.note_model)),
        mock.patch.object(
            torch.optim.Optimizer, "load_state_dict", method_of(watch.note_optimizer)
        ),
        mock.patch.object(torch, "save", watch.note_save),
        mock.patch.object(torch, "load", watch.note_load),
    ):
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
