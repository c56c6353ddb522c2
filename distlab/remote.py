"""Calls into the rooms of a rank by name, so that the notebook's kernel need not import torch to send them.

Pickled by reference in the notebook's kernel, runs on a rank.
"""

from __future__ import annotations

import importlib
from typing import Any


def on_rank(name: str, *args: Any) -> Any:
    """distlab.<name>(*args); a name without a room is worker.py's."""
    room, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"distlab.{room or 'worker'}"), function)(*args)
