"""The random numbers of a rank: the states of its generators, taken and put back.

Called on every rank; plain PyTorch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from distlab.errors import refuse


def generator_list(generators: Any) -> list[torch.Generator]:
    """One generator or several, as a list."""
    several = [generators] if isinstance(generators, torch.Generator) else generators
    if not isinstance(several, Sequence) or not all(isinstance(one, torch.Generator) for one in several):
        refuse("generators", "a list of torch.Generator", generators, "Give generators=[generator].", wrong_type=True)
    return list(several)


def random_state(generators: Sequence[torch.Generator]) -> dict[str, Any]:
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


def set_random_state(state: Mapping[str, Any], generators: Sequence[torch.Generator]) -> None:
    torch.set_rng_state(state["torch"].cpu())
    random.setstate(state["python"])
    for generator, saved in zip(generators, state["generators"], strict=True):
        generator.set_state(saved.cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    if "numpy" in state and "numpy" in sys.modules:
        kind, keys, place, has_gauss, gauss = state["numpy"]
        sys.modules["numpy"].random.set_state((kind, keys, int(place), int(has_gauss), gauss))
