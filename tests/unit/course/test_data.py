"""distlab_course.data: partitions against torch's own, the published files, and errors."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, random_split

from distlab.errors import DataError
from distlab_course import data
from distlab_course.data import DataPartitioner, batch_per_rank
from tests.data_files import CIFAR_BATCHES, md5, write_archive, write_cifar, write_mnist
from tests.refused import refused

NOWHERE = "http://127.0.0.1:9/"  # where nobody answers


# --- partitions


@pytest.mark.parametrize("sizes", [[0.7, 0.2, 0.1], [1 / 3] * 3, [0.1] * 10, [90, 7, 4], [1.0]])
def test_partitions_are_those_of_random_split(sizes):
    """Fractions and counts give the parts of torch's random_split, sample by sample, for the same seed: each once."""
    parts = DataPartitioner(range(101), sizes, seed=7)
    theirs = random_split(range(101), sizes, generator=torch.Generator().manual_seed(7))
    assert [parts.use(i).indices for i in range(len(parts))] == [list(part.indices) for part in theirs]
    assert sorted(index for i in range(len(parts)) for index in parts.use(i).indices) == list(range(101))
    (values,) = DataLoader(parts.use(0), batch_size=101)
    assert values.tolist() == parts.use(0).indices


def partitions(sizes):
    return DataPartitioner(range(10), sizes)


REFUSED = {
    "sizes must be at least one sample for each partition, got [1.5, -0.5]. ": lambda: partitions([1.5, -0.5]),
    "sizes must be fractions that add up to 1, or numbers that add up to the 10": lambda: partitions([0.5, 0.4]),
    "partition must be a whole number from 0 to 1, got 2. ": lambda: partitions([0.5, 0.5]).use(2),
    "batch must be a whole number of 4 or more, got 3. Give for example batch=128": lambda: batch_per_rank(3, 4),
    "name must be one of 'digits', 'mnist', 'cifar10', got 'mnits'. ": lambda: data.load("mnits"),
    "fallback must be one of 'digits', 'mnist', 'cifar10', got True. ": lambda: data.load("mnist", fallback=True),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.items())
def test_bad_arguments_are_refused(message, call):
    """What cannot work is refused with the rule and the value."""
    assert str(refused(call)).startswith(message)


# --- digits


def test_digits_are_scikit_learns():
    """The two parts hold its 1797 digits, each once, in an order that no seed changes, with mean 0 and deviation 1."""
    images = data.load()
    assert repr(images) == "digits: 1437 images to train on, 360 to test with, each 1 x 8 x 8"
    assert repr(images.test) == "ImageSet of 360 images, each 1 x 8 x 8"
    pixels = torch.cat([images.train.images, images.test.images]).reshape(1797, 64).numpy()
    labels = torch.cat([images.train.labels, images.test.labels]).numpy()
    bunch = load_digits()
    ours, theirs = np.column_stack([labels, pixels]), np.column_stack([bunch.target, bunch.data])
    assert np.array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])
    normalised, _ = images.train.batch(slice(None))
    assert normalised.mean().item() == pytest.approx(0, abs=2e-3)
    assert normalised.std().item() == pytest.approx(1, abs=2e-3)


# --- files


def trust(monkeypatch, name, folder):
    """Let the files in a folder be the published ones, which nobody serves."""
    monkeypatch.setitem(data.sets.FILES, name, {path.name: md5(path) for path in sorted(folder.iterdir())})
    monkeypatch.setitem(data.sets.ADDRESSES, name, NOWHERE)


def test_mnist_files_are_read(tmp_path, monkeypatch):
    """Files that are there, in torchvision's folders or in the user's cache, are read without any download."""
    written = write_mnist(tmp_path / "distlab")
    trust(monkeypatch, "mnist", tmp_path / "distlab" / "MNIST" / "raw")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = data.load("mnist", root=tmp_path / "distlab", fallback="digits")
    assert repr(images) == repr(data.load("mnist"))
    assert repr(images) == "mnist: 12 images to train on, 5 to test with, each 1 x 28 x 28"
    for part, stem in ((images.train, "train"), (images.test, "t10k")):
        pixels, labels = written[stem]
        assert np.array_equal(part.images[:, 0].numpy(), pixels)
        assert part.labels.tolist() == labels.tolist()
        assert part.labels.dtype == torch.int64


def test_cifar_files_are_read(tmp_path, monkeypatch):
    """The pickles of Python 2 in the archive give red, green and blue planes, the batches one after the other."""
    written = write_cifar(tmp_path)
    trust(monkeypatch, "cifar10", tmp_path)
    images = data.load("cifar10", root=tmp_path)
    assert repr(images) == "cifar10: 15 images to train on, 3 to test with, each 3 x 32 x 32"
    rows = np.concatenate([written[name][0] for name in CIFAR_BATCHES[:5]])
    assert np.array_equal(images.train.images.numpy(), rows.reshape(-1, 3, 32, 32))
    assert images.train.labels.tolist() == [label for name in CIFAR_BATCHES[:5] for label in written[name][1]]
    assert images.test.labels.tolist() == written["test_batch"][1]
    image, _ = images.test[1]
    green = (torch.from_numpy(written["test_batch"][0][1][1024:2048]).reshape(32, 32) / 255 - 0.4822) / 0.1994
    assert torch.allclose(image[1], green)


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


def test_a_file_that_is_not_the_published_one_is_never_opened(tmp_path, monkeypatch, capsys):
    """A pickle may call anything, so an archive with another checksum is an error; another set comes when asked for."""
    path = tmp_path / "cifar-10-python.tar.gz"
    write_archive(path, {"cifar-10-batches-py/data_batch_1": pickle.dumps(Evil(), protocol=2)})
    monkeypatch.setitem(data.sets.ADDRESSES, "cifar10", NOWHERE)
    text = str(refused(data.load, "cifar10", root=tmp_path, kind=DataError))
    assert text.startswith(f"{path} is damaged and could not be downloaded (")
    assert "Connection refused" in text
    assert text.endswith("). Put a whole copy there. Or call load('cifar10', fallback=\"digits\").")
    with pytest.warns(UserWarning, match=r"could not be downloaded .* digits is loaded in its place\."):
        assert data.load("cifar10", root=tmp_path, fallback="digits").name == "digits"
    assert "must not run" not in capsys.readouterr().out


def test_augmented_images_are_cut_out_of_a_wider_border():
    """Each is one of the 81 places of its own image, as it was or mirrored, and in time every place comes."""
    torch.manual_seed(0)
    images, seen = torch.rand(1, 2, 6, 5), set()
    wide = torch.nn.functional.pad(images, [4] * 4)
    cuts = [wide[0, :, y : y + 6, x : x + 5] for y in range(9) for x in range(9)]
    for _ in range(200):
        (found,) = data.augment(images)
        ways = [(place, cut, cut.flip(2)) for place, cut in enumerate(cuts)]
        places = [(place, way) for place, *both in ways for way in (0, 1) if found.equal(both[way])]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) > 80
