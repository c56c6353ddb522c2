"""Data for training: sets of images in memory, and their partition among the ranks.

Called by the notebooks and on the ranks; the same code runs under `torchrun`. It needs pooch for
what it downloads.

The digits ship inside scikit-learn. Only MNIST and CIFAR-10 need files, which `load` downloads.
They lie as torchvision lays them out, so files that it has downloaded are found; but beside a CPU
build of torch PyPI's torchvision cannot be imported, so the course reads them itself.
"""

import gzip
import importlib.util
import os
import pickle
import tarfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Subset, random_split

from distlab.arguments import one_of, whole_number
from distlab.errors import DataError

SEED = 0  # of the order of the digits
DIGITS_FOR_TEST = 360  # of 1797
ADDRESSES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "cifar10": "https://www.cs.toronto.edu/~kriz/",
}
FILES = {  # with their MD5 checksums, as the publishers give them
    "mnist": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "cifar10": {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
}
PATIENCE_SECONDS = 20  # for a server that does not answer


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Images and their labels in memory.

    Sample i is a normalised image and its label, as a DataLoader takes them.

    Args:
        images: uint8 [samples, channels, height, width], from 0 to `highest`.
        labels: int64 [samples].
        mean, std: of the pixels as fractions of `highest`, one for each channel; every image is
            normalised by them.
        highest: the largest value that a pixel can have.
    """

    images: torch.Tensor
    labels: torch.Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    highest: int = 255

    def batch(
        self, indices: Sequence[int] | torch.Tensor | slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Some samples at once.

        Returns:
            normalised images, float32 [samples, channels, height, width], and labels, int64
            [samples].
        """
        fractions = self.images[indices].to(torch.float32) / self.highest
        mean = torch.tensor(self.mean).reshape(-1, 1, 1)
        std = torch.tensor(self.std).reshape(-1, 1, 1)
        return (fractions - mean) / std, self.labels[indices]

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
        name: as `load` takes it.
        shape: of one image: channels, height, width.
        classes: how many different labels there are; they are numbered from 0.
    """

    name: str
    train: ImageSet
    test: ImageSet
    shape: tuple[int, int, int]
    classes: int = 10

    def __repr__(self) -> str:
        parts = f"{len(self.train)} images to train on, {len(self.test)} to test with"
        shape = " x ".join(str(size) for size in self.shape)
        return f"{self.name}: {parts}, each {shape}"


def load(name: str = "digits", root: str | Path | None = None) -> Images:
    """A set of images by its name.

    The digits need no files; the others are downloaded when they are not there. On ranks, one rank
    of each machine downloads and checks the files while the others wait for it.

    Runs on: every rank of the group (a rank that skips it hangs the rest); without a process group,
    anywhere.

    Args:
        name: "digits" (1797 handwritten digits of 8 x 8 pixels, inside scikit-learn), "mnist"
            (70,000 of 28 x 28) or "cifar10" (60,000 photographs, 3 x 32 x 32).
        root: folder for the files, as torchvision lays them out; by default distlab/ in the user's
            cache.

    Raises:
        ArgumentError: there is no set of that name. DataError: a file is missing or damaged, and
            cannot be downloaded.
    """
    one_of("name", name, ("digits", *FILES), 'Call load() for the digits, or load("mnist").')
    if name == "digits":
        return digits()
    folder = Path(root) if root else _cache()
    read = _cifar10
    if name == "mnist":
        folder = folder / "MNIST" / "raw"
        read = _mnist
    one_rank_first(fetch, ADDRESSES[name], FILES[name], folder)
    return read(folder)


def _cache() -> Path:
    """distlab/ in the user's cache. Source: XDG Base Directory Specification."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "distlab"


def fetch(address: str, files: Mapping[str, str], folder: Path) -> None:
    """Have every file in a folder, whole: what is missing or damaged is downloaded.

    A file takes its name when it is whole, so that a download that was cut off leaves none behind.

    Runs on: anywhere, one process at a time; see `one_rank_first`.

    Args:
        address: what a file's name is appended to.
        files: MD5 checksum of each file by its name, as the publisher gives them.

    Raises:
        DataError: a file cannot be downloaded.
    """
    with warnings.catch_warnings():  # of tqdm, which pooch imports, about widgets
        warnings.simplefilter("ignore")
        import pooch  # takes a moment, and the digits need none

    download = pooch.HTTPDownloader(timeout=PATIENCE_SECONDS)
    for name, md5 in files.items():
        try:
            pooch.retrieve(address + name, f"md5:{md5}", name, folder, downloader=download)
        except (OSError, ValueError) as error:
            why = f"is missing or damaged, and could not be downloaded ({error})"
            raise DataError(
                f"{folder / name} {why}. Put a whole copy there, or call load() for the digits."
            ) from error


def one_rank_first(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call fn(*args, **kwargs) on one rank of each machine, and only then on the others.

    The others find the work done. However long the first takes, the others do not run into the
    group's timeout. For example one_rank_first(torchvision.datasets.MNIST, "data", download=True).

    Runs on: every rank (one that skips it hangs the rest). LOCAL_RANK, which the cluster and
    torchrun set, is 0 on the first rank of a machine. Without a process group it is the plain call.

    Returns:
        what fn returned on this rank.

    Raises:
        DataError: the call failed on a rank that was first; that rank itself raises what fn raised.
    """
    if not dist.is_initialized():
        return fn(*args, **kwargs)
    local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
    is_first = local_rank == 0
    value = None
    failure = None
    report = None  # of the failure, for the ranks that wait
    # its ranks wait as long as the first one takes
    patient = dist.new_group(timeout=timedelta(days=1), backend="gloo")
    if is_first:
        try:
            value = fn(*args, **kwargs)
        except Exception as error:
            failure = error
            report = f"{type(error).__name__}: {error}"
    reports: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(reports, report, group=patient)
    dist.destroy_process_group(patient)
    if failure is not None:
        raise failure
    for other in reports:
        if other is not None:
            raise DataError(f"The rank that came first failed. {other}")
    if is_first:
        return value
    return fn(*args, **kwargs)


def partition(samples: Any, parts: int, seed: int = 1234) -> list[Subset]:
    """Shuffled parts of a data set for the ranks.

    Each rank takes its own: `partition(samples, world_size)[rank]`. Every sample is in exactly one
    part, and the sizes differ by one at most. The same seed gives the same parts on every rank, so
    that no rank has to send any. Lab 06 builds it.

    Runs on: anywhere; no rank waits for another.

    Args:
        samples: anything with a length and samples by number.
        parts: how many.
        seed: of the shuffle.

    Raises:
        ArgumentError: there are not as many samples as parts.
    """
    whole_number("parts", parts, 1, len(samples), "Use fewer ranks, or more data.")
    size, remainder = divmod(len(samples), parts)
    sizes = [size] * parts
    for part in range(remainder):
        sizes[part] += 1
    return random_split(samples, sizes, torch.Generator().manual_seed(seed))


def augment(images: torch.Tensor, padding: int = 4) -> torch.Tensor:
    """Cut each image out of a wider border of zeros at a random place, and mirror half of them.

    Images then look a little different in every epoch, so that a network learns what is in them.
    The random numbers are torch's: ranks that were given the same seed cut alike.

    Runs on: anywhere; no rank waits for another.

    Args:
        images: of [samples, channels, height, width]; they are not changed.
        padding: width of the border, in pixels.

    Returns:
        as many images of the same shape.

    Source: K. He et al., Deep Residual Learning for Image Recognition (2015), section 4.2.
    """
    samples, _, height, width = images.shape
    wide = torch.nn.functional.pad(images, [padding] * 4)
    corners = torch.randint(2 * padding + 1, (samples, 2)).tolist()  # top and left of each
    parts = []
    for image, (y, x) in zip(wide, corners, strict=True):
        part = image[:, y : y + height, x : x + width]
        parts.append(part)
    cut = torch.stack(parts)
    mirrored = torch.rand(samples, 1, 1, 1) < 0.5
    return torch.where(mirrored, cut.flip(3), cut)


def digits() -> Images:
    """The handwritten digits that ship inside scikit-learn, in a shuffled order that never changes.

    Runs on: anywhere. Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits,
    UCI (1998).
    """
    found = importlib.util.find_spec("sklearn")  # to import it takes each rank two seconds
    if found is None or found.origin is None:
        raise DataError(
            "The digits ship inside scikit-learn, which is not installed here: "
            "pip install scikit-learn."
        )
    path = Path(found.origin).with_name("datasets") / "data" / "digits.csv.gz"
    # 64 pixels and a label each
    rows = torch.from_numpy(np.loadtxt(path, dtype=np.uint8, delimiter=","))
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(len(rows), generator=generator)
    rows = rows[order]
    images = rows[:, :-1].reshape(-1, 1, 8, 8)
    labels = rows[:, -1].to(torch.int64)

    def part(which: slice) -> ImageSet:
        mean = (0.3053,)
        std = (0.3761,)
        return ImageSet(images[which], labels[which], mean, std, highest=16)

    train = part(slice(DIGITS_FOR_TEST, None))
    test = part(slice(DIGITS_FOR_TEST))
    return Images("digits", train, test, (1, 8, 8))


def _mnist(folder: Path) -> Images:
    """MNIST from its four files, whose checksums are right."""

    def part(stem: str) -> ImageSet:
        images = _read_idx(folder / f"{stem}-images-idx3-ubyte.gz")
        images = images.unsqueeze(1)  # their one channel
        labels = _read_idx(folder / f"{stem}-labels-idx1-ubyte.gz")
        return ImageSet(images, labels.to(torch.int64), mean=(0.1307,), std=(0.3081,))

    return Images("mnist", part("train"), part("t10k"), (1, 28, 28))


def _read_idx(path: Path) -> torch.Tensor:
    """The unsigned bytes in an idx file.

    It has two zeros, a type, the number of sizes, each size as a big-endian int32, and the bytes.

    Source: Y. LeCun, The MNIST database of handwritten digits, section "File formats".
    """
    content = bytearray(gzip.decompress(path.read_bytes()))
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", count=dimensions, offset=4).tolist()
    flat = torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * dimensions)
    return flat.reshape(shape)


def _cifar10(folder: Path) -> Images:
    """CIFAR-10 from the archive of its Python version.

    The archive's checksum must have been compared: a pickle may call anything.

    Source: A. Krizhevsky, The CIFAR-10 dataset, section "Dataset layout": red, green and blue
    planes, row by row.
    """
    with tarfile.open(folder / "cifar-10-python.tar.gz", "r:gz") as archive:
        train = [_cifar10_batch(archive, f"data_batch_{number}") for number in range(1, 6)]
        test = [_cifar10_batch(archive, "test_batch")]
    return Images("cifar10", _cifar10_part(train), _cifar10_part(test), (3, 32, 32))


def _cifar10_batch(archive: tarfile.TarFile, name: str) -> dict[bytes, Any]:
    """One pickled batch: b"data", uint8 [samples, 3072], and b"labels", a list."""
    file = archive.extractfile(f"cifar-10-batches-py/{name}")
    if file is None:
        raise DataError(f"The archive of CIFAR-10 has no file {name}.")
    return pickle.load(file, encoding="bytes")


def _cifar10_part(batches: Sequence[dict[bytes, Any]]) -> ImageSet:
    """The images and labels of some batches, one after the other."""
    pixels = np.concatenate([batch[b"data"] for batch in batches])
    images = torch.from_numpy(pixels).reshape(-1, 3, 32, 32)
    labels: list[int] = []
    for batch in batches:
        labels += batch[b"labels"]
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)
    return ImageSet(images, torch.tensor(labels), mean, std)
