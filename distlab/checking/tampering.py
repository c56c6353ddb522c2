"""Whether an answer has replaced functions of torch, of Python or of distlab.

Runs on a rank, where a marking process calls `remember_functions` before the answer comes, and
trial.py asks after each call. A function is replaced if another object stands under its name. That
changes no verdict, which is found in another process; but a person should know.
"""

from __future__ import annotations

import builtins
import importlib
import json
import math
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from distlab.simulated import backend

LOOKED_AT: dict[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    "torch.autograd": torch.autograd,
    "torch.distributed": dist,
    "torch.distributed.distributed_c10d": dist.distributed_c10d,
    "torch.distributed.ProcessGroup": dist.ProcessGroup,
    "torch.distributed.Work": dist.Work,
    "builtins": builtins,
    "json": json,
    "math": math,
    "os": os,
    "time": time,
}
# distlab's, which stand between an answer and its verdict on this rank
OWN_MODULES = (
    "distlab.checking.exercises",
    "distlab.checking.trial",
    "distlab.checking.observed",
    "distlab.checking.packing",
    "distlab.checking.tampering",
    "distlab.simulated.notes",
    "distlab.simulated.backend",
)
# by name of a module or class: itself, and what could be called in it
_BEFORE: dict[str, tuple[Any, dict[str, Any]]] = {}


def remember_functions() -> None:
    """Remember all functions and classes of the modules, before an answer comes.

    Runs on: every rank.
    """
    backend.register()  # which wraps functions of torch
    # an answer may come before anything else here has imported them
    own = {name: importlib.import_module(name) for name in OWN_MODULES}
    for name, table in {**LOOKED_AT, **own}.items():
        _BEFORE[name] = (table, _functions(table))


def changed_function() -> str:
    """The full name of a function that is another one than at `remember_functions`; "" for none.

    Runs on: a rank.
    """
    for name, (table, before) in _BEFORE.items():
        now = vars(table)
        for attribute, value in before.items():
            if now.get(attribute) is not value:
                return f"{name}.{attribute}"
        if isinstance(table, type):
            overridden = next(_overridden(table, before), None)
            if overridden is not None:
                return f"{name}.{overridden}"
    return ""


def _overridden(table: type, before: dict[str, Any]) -> Iterator[str]:
    """The methods that a class has now itself, and before had from a base."""
    for base in table.__mro__[1:]:
        for attribute, value in vars(table).items():
            if attribute in vars(base) and attribute not in before and callable(value):
                yield attribute


def _functions(table: Any) -> dict[str, Any]:
    """What can be called, by name; a class's own attributes as they stand in it."""
    functions = {}
    for name, value in vars(table).items():
        # by its type, since torch warns whoever asks a deprecated name for its class
        wraps_a_function = issubclass(type(value), (staticmethod, classmethod, property))
        if callable(value) or wraps_a_function:
            functions[name] = value
    return functions
