"""What a comparison asks of a rank: to run a program and look at it, or to look at a cell.

Runs on every rank; called by entry.py.

What looks changes nothing in the program, but for dropout, which it keeps out (randomness.py), and
for a unit of rounding where it is asked to (perturbing.py). It never communicates.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from distlab.comparison.records import RankRecord, WatchOptions
from distlab.comparison.watching.called_modules import CalledModules
from distlab.comparison.watching.communication import Communication
from distlab.comparison.watching.forwards import Forwards
from distlab.comparison.watching.losses import Losses
from distlab.comparison.watching.own_gradients import OwnGradients
from distlab.comparison.watching.perturbing import Perturbation
from distlab.comparison.watching.randomness import Randomness
from distlab.comparison.watching.samplers import Samplers
from distlab.comparison.watching.state import Watching
from distlab.comparison.watching.steps import Steps
from distlab.comparison.watching.wrappers import Wrappers


def watched(
    rank: int,
    world_size: int,
    train: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: WatchOptions,
) -> RankRecord:
    """Run a training program on this rank, and look at it.

    Runs on: every rank of the world.

    Args:
        rank: of this process in the world.
        world_size: how many ranks it has.
        train: called as train(rank, world_size, *args, **kwargs).
        args: further arguments.
        kwargs: further arguments by name.
        options: how it is run and looked at.

    Returns:
        What was seen.

    Raises:
        Whatever the program raises; nothing looks any more then.
    """
    seed = options.seed + rank
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    watching = _begin(RankRecord(rank, world_size), options)
    try:
        train(rank, world_size, *args, **kwargs)
    finally:
        record = watching.finish()
    return record


@dataclass
class WatchedCell:
    """The cell that runs on this rank now; one object a process, `_CELL`.

    Attributes:
        watching: what looks at it; None if nothing does.
    """

    watching: Watching | None = None


_CELL = WatchedCell()


def begin_watch(options: WatchOptions) -> None:
    """Begin to look at what runs on this rank. What looked before ends without a record.

    Runs on: every rank, before a cell.

    Args:
        options: how; their seed is not used.
    """
    if _CELL.watching is not None:
        end_watch()
    _CELL.watching = _begin(_record_of_cell(), options, finds_earlier=True)


def end_watch() -> RankRecord:
    """Stop looking, and return what was seen: an empty record if nothing looked.

    Runs on: every rank, after a cell.
    """
    watching = _CELL.watching
    _CELL.watching = None
    return _record_of_cell() if watching is None else watching.finish()


def _record_of_cell() -> RankRecord:
    if dist.is_available() and dist.is_initialized():
        return RankRecord(dist.get_rank(), dist.get_world_size())
    return RankRecord(0, 1)


def _begin(record: RankRecord, options: WatchOptions, finds_earlier: bool = False) -> Watching:
    watching = Watching(options, record)
    try:
        _install(watching, finds_earlier)
    except BaseException:
        watching.patches.end()
        raise
    return watching


def _install(watching: Watching, finds_earlier: bool) -> None:
    """Have everything look. The order is of no importance, as each replaces other functions."""
    wrappers = Wrappers(watching)
    if finds_earlier:
        wrappers.find_earlier()
    wrappers.install()
    own_gradients = OwnGradients(watching)
    modules = CalledModules(watching, own_gradients)
    perturbation = None
    if watching.options.perturbation is not None:
        perturbation = Perturbation(watching, watching.options.perturbation)
    Forwards(watching, wrappers, modules, perturbation).install()
    Steps(watching, own_gradients, perturbation).install()
    Losses(watching).install()
    Communication(watching).install()
    Randomness(watching).install()
    Samplers(watching).install()
    watching.patches.pause_in(torch.jit, "script")
