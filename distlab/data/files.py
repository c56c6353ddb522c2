"""Two file formats of published images, as tensors: MNIST's idx and CIFAR's pickles in an archive.

Called by sets.py, on the ranks and anywhere else. Each function says which file is damaged, and how.

torchvision reads both as well, but beside a CPU build of torch PyPI's torchvision cannot be imported, and a few lines
are enough: so the course needs none. Its folders are the same, so files that it has downloaded are found here.
"""

from __future__ import annotations

import gzip
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from distlab.errors import DataError

UNSIGNED_BYTES = 0x08  # idx's code of this type
CIFAR_SHAPE = (3, 32, 32)  # red, green and blue planes, row by row
ADVICE = "Put a whole copy there, or delete it and call load() to download it."
# All that the arrays in CIFAR's files are made of. A pickle can call anything else that Python has.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def read_idx(path: Path) -> torch.Tensor:
    """The unsigned bytes in an idx file that was packed by gzip, in their shape.

    Runs on: anywhere.

    Raises:
        DataError: the file is missing, damaged, cut off or of another kind.

    Source: Y. LeCun, The MNIST database of handwritten digits, section "File formats".
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there. {ADVICE}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}). {ADVICE}") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTES]):
        raise DataError(f"{path} must begin with the bytes 0, 0, 8 of an idx file, got {list(content[:3])}.")
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:start], dtype=">i4").tolist()) if len(content) >= start else None
    if shape is None or len(content) - start != np.prod(shape, dtype=np.int64):
        wanted = "a whole header" if shape is None else f"{' x '.join(map(str, shape))} bytes of data"
        raise DataError(f"{path} must hold {wanted}, got {max(0, len(content) - start)}. {ADVICE}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def read_cifar(path: Path, batches: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Some of the batches in CIFAR-10's archive of pickles, one after the other.

    Runs on: anywhere.

    Returns:
        images, uint8 [samples, 3, 32, 32], and labels, int64 [samples].

    Raises:
        DataError: the archive is missing, damaged or cut off, or a batch is not in it.

    Source: A. Krizhevsky, The CIFAR-10 dataset, section "Dataset layout".
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            members = [archive.extractfile(f"cifar-10-batches-py/{name}") for name in batches]
            parts = [_ArraysOnly(member, encoding="bytes").load() for member in members]
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there. {ADVICE}") from error
    except (OSError, EOFError, zlib.error, tarfile.TarError, pickle.UnpicklingError, KeyError) as error:
        raise DataError(f"{path} cannot be unpacked ({error}). {ADVICE}") from error
    pairs = [_check_batch(f"{name} in {path}", part) for name, part in zip(batches, parts, strict=True)]
    images = torch.from_numpy(np.concatenate([rows for rows, _ in pairs]))
    return images.reshape(-1, *CIFAR_SHAPE), torch.tensor([label for _, labels in pairs for label in labels])


def _check_batch(name: str, part: Any) -> tuple[np.ndarray, list[int]]:
    """The images of a batch, each a row of 3072 bytes, and a label for each row."""
    rows, labels = (part.get(b"data"), part.get(b"labels", [])) if isinstance(part, dict) else (part, [])
    if getattr(rows, "dtype", None) != np.uint8 or rows.shape != (len(labels), 3 * 32 * 32):
        got = getattr(rows, "shape", type(rows).__name__)
        raise DataError(f"{name} must hold {len(labels)} rows of 3072 bytes, one for each label, got {got}. {ADVICE}")
    return rows, labels


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays and plain values, and refuses to import anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
        return super().find_class(module, name)
