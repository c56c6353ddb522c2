"""Seeds that a program sets, and dropout, which is kept out of what is compared.

Runs on every rank; called by watch.py and forwards.py.

Masks over other parts of a batch can never be equal, so dropout returns its input unchanged in
every world; what is noted is the state of the random numbers, from which the mask would have come.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from distlab.comparison.records import SeenDropout, SeenSeed
from distlab.comparison.watching.seen_lines import learners_line
from distlab.comparison.watching.state import Watching
from distlab.compat import torch_watching as private
from distlab.compat.torch import in_backward, is_tracing

_DROPOUTS = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class Randomness:
    """Looks at seeds and dropout."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching

    def install(self) -> None:
        """Begin to look."""
        patches = self._watching.patches
        patches.replace(torch, "manual_seed", self._on_seed)
        for name in _DROPOUTS:
            patches.replace(private.DROPS_OUT, name, self._on_dropout)
            patches.replace(private.DROPS_OUT, f"{name}_", self._on_dropout_in_place)
        for name in _RECURRENT:
            patches.replace(private.DROPS_OUT, name, self._on_recurrent)
        patches.replace(functional, "scaled_dot_product_attention", self._on_attention)

    def _on_seed(self, original: Callable[..., Any], seed: int) -> Any:
        generator = original(seed)
        self._watching.record.seeds.append(SeenSeed(int(seed), learners_line()))
        return generator

    def _on_dropout(
        self, original: Callable[..., Any], input: torch.Tensor, p: float, train: bool
    ) -> Any:
        if not train or p == 0 or _is_traced(input):
            return original(input, p, train)
        self._note(input)
        return input.clone()  # a tensor of its own, as dropout gives one

    def _on_dropout_in_place(
        self, original: Callable[..., Any], input: torch.Tensor, p: float, train: bool
    ) -> Any:
        if not train or p == 0 or _is_traced(input):
            return original(input, p, train)
        self._note(input)
        return input

    def _on_recurrent(self, original: Callable[..., Any], *args: Any) -> Any:
        """A recurrent network, which draws masks between its layers.

        Its arguments are (..., has_biases, layers, dropout, train, ...), the others are tensors.
        """
        place = next(number for number, one in enumerate(args) if isinstance(one, bool)) + 2
        dropout, train = args[place : place + 2]
        if not train or dropout == 0 or _is_traced(args[0]):
            return original(*args)
        self._note(args[0])
        return original(*args[:place], 0.0, *args[place + 1 :])

    def _on_attention(
        self,
        original: Callable[..., Any],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if dropout_p > 0 and not _is_traced(query):
            self._note(query)
            dropout_p = 0.0
        return original(query, key, value, attn_mask, dropout_p, *args, **kwargs)

    def _note(self, dropped: torch.Tensor) -> None:
        if in_backward():  # what was dropped is computed again
            return
        state = torch.get_rng_state()
        if dropped.is_cuda:
            state = torch.cuda.get_rng_state(dropped.device)
        fingerprint = hashlib.blake2b(state.numpy().data, digest_size=8).digest()
        watching = self._watching
        watching.record.dropouts.append(
            SeenDropout(watching.number_of_steps, fingerprint, learners_line())
        )


def random_states() -> bytes:
    """A fingerprint of the states of all random numbers that a module may draw from."""
    states = hashlib.blake2b(torch.get_rng_state().numpy().data, digest_size=8)
    if torch.cuda.is_initialized():
        states.update(torch.cuda.get_rng_state().numpy().data)
    states.update(repr(random.getstate()).encode())
    _, keys, *place = np.random.get_state(legacy=True)
    states.update(np.asarray(keys).data)
    states.update(repr(place).encode())
    return states.digest()


def _is_traced(tensor: torch.Tensor) -> bool:
    return torch.compiler.is_compiling() or is_tracing([tensor])
