"""distlab_course.data: partitions, the published files, and errors."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from distlab.errors import DataError
from distlab_course import data
from tests.data_files import CIFAR_BATCHES, md5, write_cifar, write_mnist
from tests.refused import refused

NOWHERE = "http://127.0.0.1:9/"  # where nobody answers


# --- partitions


def parts_of(samples, parts, seed):
    """The samples of each part, as lists."""
    return [list(part) for part in data.partition(samples, parts, seed)]


@pytest.mark.parametrize("parts", [1, 3, 9, 10, 101])
def test_partitions_use_every_sample_once(parts):
    """Their sizes differ by one at most, and the seed alone decides what is in them."""
    found = parts_of(range(101), parts, seed=7)
    assert sorted(itertools.chain.from_iterable(found)) == list(range(101))
    assert {len(part) for part in found} <= {101 // parts, 101 // parts + 1}
    assert parts_of(range(101), parts, seed=7) == found
    if parts < 101:
        assert parts_of(range(101), parts, seed=8) != found


REFUSED = {
    "parts must be a whole number from 1 to 10, got 11. Use fewer": lambda: data.partition(
        range(10), 11
    ),
    "name must be one of 'digits', 'mnist', 'cifar10', got 'mnits'. ": lambda: data.load("mnits"),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.items())
def test_bad_arguments_are_refused(message, call):
    """What cannot work is refused with the rule and the value."""
    assert str(refused(call)).startswith(message)


# --- digits


def test_digits_are_scikit_learns():
    """The two parts hold its 1797 digits, each once, with mean 0 and deviation 1.

    No seed changes their order.
    """
    images = data.load()
    assert repr(images) == "digits: 1437 images to train on, 360 to test with, each 1 x 8 x 8"
    pixels = torch.cat([images.train.images, images.test.images]).reshape(1797, 64).numpy()
    labels = torch.cat([images.train.labels, images.test.labels]).numpy()
    bunch = load_digits()
    ours = np.column_stack([labels, pixels])
    theirs = np.column_stack([bunch.target, bunch.data])
    assert np.array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])
    normalised, _ = images.train.batch(slice(None))
    assert normalised.mean().item() == pytest.approx(0, abs=2e-3)
    assert normalised.std().item() == pytest.approx(1, abs=2e-3)


# --- files


def trust(monkeypatch, name, folder):
    """Let the files in a folder be the published ones, which nobody serves."""
    files = {path.name: md5(path) for path in sorted(folder.iterdir())}
    monkeypatch.setitem(data.FILES, name, files)
    monkeypatch.setitem(data.ADDRESSES, name, NOWHERE)


def test_mnist_files_are_read(tmp_path, monkeypatch):
    """Files that are there are read without any download.

    They may be in torchvision's folders or in the user's cache.
    """
    written = write_mnist(tmp_path / "distlab")
    trust(monkeypatch, "mnist", tmp_path / "distlab" / "MNIST" / "raw")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    images = data.load("mnist", root=tmp_path / "distlab")
    assert repr(images) == repr(data.load("mnist"))
    assert repr(images) == "mnist: 12 images to train on, 5 to test with, each 1 x 28 x 28"
    for part, stem in ((images.train, "train"), (images.test, "t10k")):
        pixels, labels = written[stem]
        assert np.array_equal(part.images[:, 0].numpy(), pixels)
        assert part.labels.tolist() == labels.tolist()


def test_cifar_files_are_read(tmp_path, monkeypatch):
    """The pickles of Python 2 in the archive give red, green and blue planes, batch after batch."""
    written = write_cifar(tmp_path)
    trust(monkeypatch, "cifar10", tmp_path)
    images = data.load("cifar10", root=tmp_path)
    assert repr(images) == "cifar10: 15 images to train on, 3 to test with, each 3 x 32 x 32"
    batches = [written[name] for name in CIFAR_BATCHES[:5]]
    rows = np.concatenate([pixels for pixels, _ in batches])
    assert np.array_equal(images.train.images.numpy(), rows.reshape(-1, 3, 32, 32))
    labels = np.concatenate([labels for _, labels in batches])
    assert images.train.labels.tolist() == labels.tolist()
    test_rows, test_labels = written["test_batch"]
    assert images.test.labels.tolist() == test_labels
    image, _ = images.test[1]
    green = torch.from_numpy(test_rows[1][1024:2048]).reshape(32, 32)
    assert torch.allclose(image[1], (green / 255 - 0.4822) / 0.1994)


def test_a_file_that_is_not_the_published_one_is_never_opened(tmp_path, monkeypatch):
    """A pickle may call anything, so an archive with another checksum is an error."""
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(b"another file")
    monkeypatch.setitem(data.ADDRESSES, "cifar10", NOWHERE)
    monkeypatch.delattr("tarfile.open")
    text = str(refused(data.load, "cifar10", root=tmp_path, kind=DataError))
    assert text.startswith(f"{path} is missing or damaged, and could not be downloaded (")
    assert "Connection refused" in text
    assert text.endswith("). Put a whole copy there, or call load() for the digits.")


def test_augmented_images_are_cut_out_of_a_wider_border():
    """Each is one of the 81 places of its own image, as it was or mirrored.

    In 200 images there are more than 80 of these 162.
    """
    torch.manual_seed(0)
    images = torch.rand(1, 2, 6, 5)
    (wide,) = torch.nn.functional.pad(images, [4] * 4)
    ways = []
    for y, x in itertools.product(range(9), repeat=2):
        cut = wide[:, y : y + 6, x : x + 5]
        ways += [cut, cut.flip(2)]
    seen = set()
    for _ in range(200):
        (found,) = data.augment(images)
        (way,) = [number for number, way in enumerate(ways) if found.equal(way)]
        seen.add(way)
    assert len(seen) > 80
