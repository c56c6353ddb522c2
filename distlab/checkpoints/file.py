"""The file of a checkpoint: written beside the old one and put in its place at the end, and read back whole.

Called by rank 0 to write and by every rank to read; plain PyTorch.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from distlab.errors import CheckpointError

FORMAT = "distlab checkpoint 1"


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write beside the file, make sure that it is on the disk, then put it in the file's place at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")  # the same name next time: what a kill leaves does not pile up
    try:
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # the new name must outlive a power failure, too
        with contextlib.suppress(OSError):  # some network disks cannot; the file is in its place all the same
            _to_disk(path.parent)


def _to_disk(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, map_location: Any) -> dict[str, Any]:
    """What a file holds; CheckpointError where it is not a whole checkpoint."""
    if not path.is_file():
        raise CheckpointError(
            f"path must be the file of a checkpoint, got {str(path)!r}, which is not there. "
            "Save one first: checkpoints.save(path, model, optimizer)."
        )
    try:
        if not zipfile.is_zipfile(path):
            raise EOFError("its end is missing, or it is no file of torch.save")
        with path.open("rb") as file:
            state = torch.load(file, map_location=map_location, weights_only=True)
    except Exception as error:
        what = f"got {str(path)!r}, whose {path.stat().st_size} bytes cannot be read ({reason(error)})"
        raise CheckpointError(f"path must be a whole checkpoint, {what}. Load an older one, or begin anew.") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = f"the keys {', '.join(map(repr, state))}" if isinstance(state, dict) else f"a {type(state).__name__}"
        raise CheckpointError(
            f"path must be a file that checkpoints.save has written, got {str(path)!r} with {found}. "
            "Load it with torch.load."
        )
    return state


def reason(error: BaseException) -> str:
    first = str(error).strip().splitlines()[:1] or [""]
    return f"{type(error).__name__}: {first[0][:120]}".rstrip(": ")
