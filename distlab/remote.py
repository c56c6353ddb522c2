"""Calls into worker.py by name, so that the notebook's kernel need not import torch to send them.

Pickled by reference in the notebook's kernel, runs on a rank.
"""

from __future__ import annotations

from typing import Any


def on_rank(name: str, *args: Any) -> Any:
    """worker.<name>(*args)."""
    from distlab import worker

    return getattr(worker, name)(*args)
