"""Sets of images in memory: the digits that ship inside scikit-learn, MNIST and CIFAR-10.

Called by the notebooks and on the ranks. Only MNIST and CIFAR-10 need files, which `load` downloads.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from distlab.data.download import Source, fetch, one_rank_first
from distlab.data.files import ADVICE, read_cifar, read_idx
from distlab.errors import DataError, refuse

SETS = ("digits", "mnist", "cifar10")
SEED = 0
DIGITS_FOR_TEST = 360  # of 1797

MNIST = Source(
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
CIFAR10 = Source(("https://www.cs.toronto.edu/~kriz/",), {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"})


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Images and their labels in memory; sample i is a normalised image and its label, as a DataLoader takes them.

    Args:
        images: uint8 [samples, channels, height, width], from 0 to `highest`.
        labels: int64 [samples].
        mean, std: of the pixels as fractions of `highest`, one a channel; every image is normalised by them.
        highest: value of the brightest pixel that can be.
    """

    images: torch.Tensor
    labels: torch.Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    highest: int = 255

    def batch(self, indices: Sequence[int] | torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Some samples at once.

        Returns:
            normalised images, float32 [samples, channels, height, width], and labels, int64 [samples].
        """
        fractions = self.images[indices].to(torch.float32) / self.highest
        mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (self.mean, self.std))
        return (fractions - mean) / std, self.labels[indices]

    def __repr__(self) -> str:
        return f"ImageSet of {len(self)} images, each {_by(self.images.shape[1:])}"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, int]]:
        """Samples that a DataLoader wants for a batch."""
        images, labels = self.batch(indices)
        return list(zip(images, labels.tolist(), strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """A published set of images: the part to train on and the part to test with.

    Args:
        name: one of SETS.
        shape: of one image: channels, height, width.
        classes: how many different labels there are; they are numbered from 0.
    """

    name: str
    train: ImageSet
    test: ImageSet
    shape: tuple[int, int, int]
    classes: int = 10

    def first(self, train: int, test: int) -> Images:
        """The first so many images of each part, or all where there are not as many: for a first try."""
        parts = ((part, slice(count)) for part, count in ((self.train, train), (self.test, test)))
        parts = (replace(part, images=part.images[some], labels=part.labels[some]) for part, some in parts)
        return Images(self.name, *parts, self.shape, self.classes)

    def __repr__(self) -> str:
        parts = f"{len(self.train)} images to train on, {len(self.test)} to test with"
        return f"{self.name}: {parts}, each {_by(self.shape)}"


def load(name: str = "digits", root: str | Path | None = None, fallback: str | None = None) -> Images:
    """A set of images by its name; the digits need no files, the others are downloaded when they are not there.

    On ranks, one rank of each machine downloads and checks the files while the others wait for it.

    Runs on: every rank of the group (a rank that skips it hangs the rest); without a process group, anywhere.

    Args:
        name: "digits" (1797 handwritten digits of 8 x 8 pixels, inside scikit-learn), "mnist" (70,000 of 28 x 28)
            or "cifar10" (60,000 photographs, 3 x 32 x 32).
        root: folder for the files, as torchvision lays them out; by default distlab/ in the user's cache.
        fallback: the set to take, with a warning, when the files cannot be had; None raises.

    Raises:
        ArgumentError: there is no set of that name. DataError: a file cannot be downloaded, or is damaged.
    """
    _check_name("name", name)
    if fallback is not None:
        _check_name("fallback", fallback)
    if name == "digits":
        return digits()
    folder = Path(root) if root is not None else _cache()
    source, read = {"mnist": (MNIST, read_mnist), "cifar10": (CIFAR10, read_cifar10)}[name]
    try:
        one_rank_first(fetch, source, folder / "MNIST" / "raw" if name == "mnist" else folder)
    except DataError as error:
        if fallback is None:
            raise DataError(f'{error} Or call load({name!r}, fallback="digits").') from error
        warnings.warn(f"{error} {fallback} is loaded in its place.", stacklevel=2)
        return load(fallback, root)
    return read(folder)


def digits() -> Images:
    """The handwritten digits that ship inside scikit-learn, in a shuffled order that never changes.

    Runs on: anywhere. Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998).
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    images = torch.from_numpy(pixels).to(torch.uint8).reshape(-1, 1, 8, 8)[order]
    labels = torch.from_numpy(labels).to(torch.int64)[order]
    parts = (slice(DIGITS_FOR_TEST, None), slice(DIGITS_FOR_TEST))
    train, test = (ImageSet(images[part], labels[part], (0.3053,), (0.3761,), highest=16) for part in parts)
    return Images("digits", train, test, (1, 8, 8))


def read_mnist(root: Path) -> Images:
    """MNIST from its four files under root/MNIST/raw.

    Runs on: anywhere. Raises: DataError: a file is missing or damaged.
    """

    def part(stem: str) -> ImageSet:
        folder = root / "MNIST" / "raw"
        images = read_idx(folder / f"{stem}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{stem}-labels-idx1-ubyte.gz")
        if images.dim() != 3 or labels.shape != images.shape[:1]:
            shapes = f"{tuple(images.shape)} and {tuple(labels.shape)}"
            raise DataError(f"{stem} in {folder} must be images and as many labels, got shapes {shapes}. {ADVICE}")
        return ImageSet(images[:, None], labels.to(torch.int64), (0.1307,), (0.3081,))

    train, test = part("train"), part("t10k")
    return Images("mnist", train, test, tuple(train.images.shape[1:]))


def read_cifar10(root: Path) -> Images:
    """CIFAR-10 from the archive of its Python version in `root`.

    Runs on: anywhere. Raises: DataError: the archive is missing or damaged.
    """
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    names = [f"data_batch_{number}" for number in range(1, 6)]
    train, test = (
        ImageSet(*read_cifar(root / "cifar-10-python.tar.gz", part), mean, std) for part in (names, ["test_batch"])
    )
    return Images("cifar10", train, test, (3, 32, 32))


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _check_name(argument: str, name: Any) -> None:
    if name not in SETS:
        rule = f"one of {', '.join(map(repr, SETS))}"
        refuse(argument, rule, name, 'Call load() for the digits, or load("mnist").', not isinstance(name, str))


def _cache() -> Path:
    """Where programs keep what can be downloaded again. Source: XDG Base Directory Specification."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distlab"
