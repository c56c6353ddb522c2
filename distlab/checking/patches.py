"""Whether an answer has replaced functions of torch or of Python, by their identity before and
after.

Runs on a rank, where a marking process has asked for it with `remember` before the answer came.
What is replaced on a rank changes no verdict, which is found elsewhere; but a person should know.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import sys
import time
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
OWN = (
    "distlab.checking.trial",
    "distlab.checking.observed",
    "distlab.checking.patches",
    "distlab.simulated.notes",
    "distlab.simulated.backend",
)
_BEFORE: dict[str, tuple[Any, dict[str, Any]]] = {}


def remember() -> None:
    """Remember all functions and classes of the modules, before an answer comes. Runs on: every
    rank.
    """
    backend.register()  # which wraps functions of torch
    own = {name: sys.modules.get(name) for name in OWN}
    for name, table in {**LOOKED_AT, **own}.items():
        if table is not None:
            _BEFORE[name] = (table, _functions(table))


def changed() -> str:
    """The full name of a function that is another one than at `remember`; "" for none. Runs on: a
    rank.
    """
    for name, (table, before) in _BEFORE.items():
        now = vars(table)
        for attribute, value in before.items():
            if now.get(attribute) is not value:
                return f"{name}.{attribute}"
        for base in table.__mro__[1:] if isinstance(table, type) else ():
            for attribute, value in now.items():
                if attribute in vars(base) and attribute not in before and callable(value):
                    return f"{name}.{attribute}"
    return ""


def _functions(table: Any) -> dict[str, Any]:
    """What can be called, by name; a class's own attributes as they stand in it."""
    wrapped = (staticmethod, classmethod, property)
    # by their types, since torch warns whoever asks a deprecated name for its class
    return {
        name: value
        for name, value in vars(table).items()
        if callable(value) or issubclass(type(value), wrapped)
    }
