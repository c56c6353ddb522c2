"""Functions of torch that are replaced while a program is watched, and put back afterwards.

Runs on every rank; called by state.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from distlab.compat import torch_watching as private


class _Replaced(NamedTuple):
    """A function in the place of another one; `original` is None if the owner inherits that."""

    owner: Any
    name: str
    replacement: Any
    original: Any


class Patches:
    """What was replaced, so that it can be put back.

    A program may keep a replacement, or put a function of its own around it; so a replacement that
    has been ended calls only what it replaced. So does one that torch.compile traces.

    Attributes:
        are_in_force: whether the replacements still do what they were made for.
    """

    def __init__(self) -> None:
        self.are_in_force = True
        self._replaced: list[_Replaced] = []
        self._removes: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """Have replacement(original, *args, **kwargs) called in the place of owner.name.

        Does nothing where this version of torch lacks it.
        """
        original = getattr(owner, name, None)
        if original is None:
            return
        had_own = name in vars(owner)

        def call(*args: Any, **kwargs: Any) -> Any:
            is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
            if is_traced or not self.are_in_force:
                return original(*args, **kwargs)
            compiler = private.set_compiler(None)
            if compiler is None:
                return replacement(original, *args, **kwargs)
            try:
                return replacement(_with_compiler(compiler, original), *args, **kwargs)
            finally:
                private.set_compiler(compiler)

        private.skip_when_compiling(call.__code__)
        functools.update_wrapper(call, original)
        setattr(owner, name, call)
        own = original if had_own else None
        self._replaced.append(_Replaced(owner, name, call, own))

    def pause_in(self, owner: Any, name: str) -> None:
        """Put everything back while owner.name runs: it takes torch's functions apart."""

        def paused(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            replaced = list(self._replaced)
            self._put_back(replaced)
            try:
                return original(*args, **kwargs)
            finally:
                if self.are_in_force:
                    for one in replaced:
                        setattr(one.owner, one.name, one.replacement)

        self.replace(owner, name, paused)

    def on_end(self, remove: Callable[[], None]) -> None:
        """Have this called when the replacements end, such as the remove() of a hook's handle."""
        self._removes.append(remove)

    def end(self) -> None:
        """Put back what was replaced; what the program itself has replaced since then stays."""
        self.are_in_force = False
        for remove in reversed(self._removes):
            remove()
        self._removes.clear()
        self._put_back(self._replaced)
        self._replaced.clear()

    def _put_back(self, replaced: list[_Replaced]) -> None:
        for one in reversed(replaced):
            if vars(one.owner).get(one.name) is not one.replacement:
                continue
            if one.original is None:
                delattr(one.owner, one.name)
            else:
                setattr(one.owner, one.name, one.original)


def _with_compiler(compiler: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """The original, with whatever torch.compile compiles in it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        private.set_compiler(compiler)
        try:
            return original(*args, **kwargs)
        finally:
            private.set_compiler(None)

    return call
