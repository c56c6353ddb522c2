"""distlab.data: partitions against torch's own, the files' formats, downloads, and what is said about bad ones."""

import collections
import gzip
import http.server
import pickle
import re
import threading
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

from distlab import data
from distlab.data import DataPartitioner, ImageSet, Partition, batch_per_rank
from distlab.data.download import Source, checksum, fetch
from distlab.data.files import read_cifar
from distlab.data.sets import read_cifar10, read_mnist
from distlab.errors import ArgumentError, ArgumentTypeError, DataError
from tests.data_files import CIFAR_BATCHES, idx_bytes, md5, python2_pickle, write_archive, write_cifar, write_mnist


def all_indices(parts):
    return [index for i in range(len(parts)) for index in parts.use(i).indices]


# --- partitions


@pytest.mark.parametrize("total", [7, 100, 1437])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_every_sample_is_used_exactly_once(total, world_size):
    """Equal fractions use every sample once, and no rank has more than one sample more than another."""
    parts = DataPartitioner(range(total), [1 / world_size] * world_size)
    assert sorted(all_indices(parts)) == list(range(total))
    assert max(parts.sizes) - min(parts.sizes) <= 1


@pytest.mark.parametrize("sizes", [[0.7, 0.2, 0.1], [1 / 3] * 3, [0.1] * 10, [90, 7, 4], [1.0], [0.5, 0.25, 0.25]])
@pytest.mark.parametrize("seed", [0, 1234])
def test_partitions_are_those_of_random_split(sizes, seed):
    """Fractions and counts give the parts of torch's random_split, sample by sample, for the same seed."""
    parts = DataPartitioner(range(101), sizes, seed=seed)
    theirs = random_split(range(101), sizes, generator=torch.Generator().manual_seed(seed))
    assert [parts.use(i).indices for i in range(len(parts))] == [list(part.indices) for part in theirs]


def test_the_seed_decides():
    """The same seed gives the same partitions, another seed others, and torch's own generator is left alone."""
    state = torch.random.get_rng_state()
    one, same, other = (all_indices(DataPartitioner(range(50), [0.5, 0.5], seed)) for seed in (7, 7, 8))
    assert one == same != other
    assert one != sorted(one)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_distributed_sampler_repeats_or_drops_what_does_not_divide(world_size):
    """DistributedSampler gives each rank as many samples, by using some twice or leaving some out; we do neither."""
    ours = collections.Counter(all_indices(DataPartitioner(range(101), [1 / world_size] * world_size)))
    used = {
        drop_last: collections.Counter(
            index
            for rank in range(world_size)
            for index in DistributedSampler(range(101), world_size, rank, drop_last=drop_last)
        )
        for drop_last in (False, True)
    }
    assert set(ours.values()) == {1}
    assert set(ours) == set(used[False]) == set(range(101))
    assert used[False].total() == 101 + -101 % world_size
    assert used[True].total() == 101 - 101 % world_size


def test_a_partition_is_a_data_set():
    """A DataLoader takes a partition, whether or not its data set gives whole batches."""
    x = torch.arange(20.0)
    images = ImageSet(torch.arange(20, dtype=torch.uint8).reshape(20, 1, 1, 1), torch.arange(20), (0.0,), (1.0,), 1)
    for source in (TensorDataset(x, x), images):
        part = Partition(source, [3, 1, 19])
        assert len(part) == 3
        assert float(part[2][0]) == 19
        (values, labels), *_ = DataLoader(part, batch_size=3)
        assert values.flatten().tolist() == labels.tolist() == [3.0, 1.0, 19.0]


def test_partitions_show_themselves():
    """What a learner prints says how many samples are where."""
    parts = DataPartitioner(range(10), [0.5, 0.3, 0.2])
    assert repr(parts) == "DataPartitioner: 10 samples in partitions of 5, 3, 2"
    assert repr(parts.use(1)) == "Partition of 3 of 10 samples"


FRACTIONS = "Give for example [0.5, 0.5], or [1 / world_size] * world_size."


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: DataPartitioner(range(3), [0.25] * 4),
            ArgumentError,
            "sizes must be at least one sample for each partition, got [0.25, 0.25, 0.25, 0.25]. "
            "3 samples do not go into these 4 partitions: use fewer ranks, or more data.",
        ),
        (
            lambda: DataPartitioner(range(10), [0.5, 0.4]),
            ArgumentError,
            f"sizes must be fractions that add up to 1, got [0.5, 0.4]. These add up to 0.9. {FRACTIONS}",
        ),
        (
            lambda: DataPartitioner(range(10), [1.5, -0.5]),
            ArgumentError,
            "sizes must be at least one sample for each partition, got [1.5, -0.5]. "
            "10 samples do not go into these 2 partitions: use fewer ranks, or more data.",
        ),
        (
            lambda: DataPartitioner(range(10), [5, 4]),
            ArgumentError,
            "sizes must be numbers that add up to the 10 samples, got [5, 4]. These add up to 9.",
        ),
        (
            lambda: DataPartitioner(range(10), [10, 0]),
            ArgumentError,
            "sizes must be at least one sample for each partition, got [10, 0]. "
            "10 samples do not go into these 2 partitions: use fewer ranks, or more data.",
        ),
        (
            lambda: DataPartitioner(range(10), [5, 0.5]),
            ArgumentTypeError,
            f"sizes must be a list of fractions, or a list of numbers of samples, got [5, 0.5]. {FRACTIONS}",
        ),
        (
            lambda: DataPartitioner(range(10), 4),
            ArgumentTypeError,
            f"sizes must be a list of fractions, or a list of numbers of samples, got 4. {FRACTIONS}",
        ),
        (
            lambda: DataPartitioner(range(10), []),
            ArgumentTypeError,
            f"sizes must be a list of fractions, or a list of numbers of samples, got []. {FRACTIONS}",
        ),
        (
            lambda: DataPartitioner(5, [1.0]),
            ArgumentTypeError,
            "data must be a data set with a length, got 5. Call DataPartitioner(range(100), [0.5, 0.5]).",
        ),
        (
            lambda: DataPartitioner(range(10), [0.5, 0.5]).use(2),
            ArgumentError,
            "partition must be a whole number from 0 to 1, got 2. Call use(rank).",
        ),
        (
            lambda: batch_per_rank(3, 4),
            ArgumentError,
            "batch must be a whole number of samples, at least one for each of the 4 ranks, got 3. "
            "Give for example batch=128, or use fewer ranks.",
        ),
        (
            lambda: batch_per_rank(12.8, 4),
            ArgumentTypeError,
            "batch must be a whole number of samples, at least one for each of the 4 ranks, got 12.8. "
            "Give for example batch=128, or use fewer ranks.",
        ),
        (
            lambda: data.load("mnits"),
            ArgumentError,
            "name must be one of 'digits', 'mnist', 'cifar10', got 'mnits'. "
            'Call load() for the digits, or load("mnist").',
        ),
        (
            lambda: data.load("mnist", fallback=True),
            ArgumentTypeError,
            "fallback must be one of 'digits', 'mnist', 'cifar10', got True. "
            'Call load() for the digits, or load("mnist").',
        ),
    ],
)
def test_bad_arguments_are_refused(call, kind, message):
    """What cannot work is refused with the rule, the value and what to do."""
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == message


def test_the_global_batch_is_kept():
    """The recipe's batch of 128 is shared among the ranks."""
    assert [batch_per_rank(128, n) for n in (1, 2, 3, 4, 128)] == [128, 64, 42, 32, 1]


# --- digits


def test_digits_are_scikit_learns():
    """The two parts hold scikit-learn's 1797 digits, each once, normalised to mean 0 and deviation 1."""
    from sklearn.datasets import load_digits

    images = data.load()
    assert repr(images) == "digits: 1437 images to train on, 360 to test with, each 1 x 8 x 8"
    assert repr(images.test) == "ImageSet of 360 images, each 1 x 8 x 8"
    pixels = torch.cat([images.train.images, images.test.images]).reshape(1797, 64)
    labels = torch.cat([images.train.labels, images.test.labels])
    ours = sorted((label, *row) for label, row in zip(labels.tolist(), pixels.tolist(), strict=True))
    bunch = load_digits()
    theirs = sorted((int(y), *map(int, x)) for x, y in zip(bunch.data, bunch.target, strict=True))
    assert ours == theirs
    normalised, _ = images.train.batch(slice(None))
    assert normalised.mean().item() == pytest.approx(0, abs=2e-3)
    assert normalised.std().item() == pytest.approx(1, abs=2e-3)


def test_digits_are_in_the_same_order_every_time():
    """The parts do not depend on torch's generator, so every rank has the same ones; every class is in both."""
    torch.manual_seed(1)
    one = data.load()
    torch.manual_seed(2)
    two = data.load()
    assert torch.equal(one.train.images, two.train.images)
    assert torch.equal(one.test.labels, two.test.labels)
    assert min(one.train.labels.bincount()) > 100
    assert min(one.test.labels.bincount(minlength=10)) > 20


def test_a_sample_is_a_row_of_its_batch():
    """One by one, as a list and as a batch, samples are the same."""
    train = data.load().train
    images, labels = train.batch([5, 0])
    assert images.dtype == torch.float32
    for place, index in enumerate((5, 0)):
        image, label = train[index]
        assert torch.equal(image, images[place])
        assert label == labels[place].item()


# --- files


def test_mnist_files_are_read(tmp_path):
    """idx files give the pixels that were written, a channel, and the recipe's normalisation."""
    written = write_mnist(tmp_path)
    images = read_mnist(tmp_path)
    assert repr(images) == "mnist: 12 images to train on, 5 to test with, each 1 x 28 x 28"
    for part, stem in ((images.train, "train"), (images.test, "t10k")):
        pixels, labels = written[stem]
        assert np.array_equal(part.images[:, 0].numpy(), pixels)
        assert part.labels.tolist() == labels.tolist()
        assert part.labels.dtype == torch.int64
    image, _ = images.train[0]
    expected = (torch.from_numpy(written["train"][0][0]) / 255 - 0.1307) / 0.3081
    assert torch.allclose(image[0], expected)


def test_cifar_files_are_read(tmp_path):
    """The pickles of Python 2 in the archive give red, green and blue planes, the batches one after the other."""
    written = write_cifar(tmp_path)
    images = read_cifar10(tmp_path)
    assert repr(images) == "cifar10: 15 images to train on, 3 to test with, each 3 x 32 x 32"
    rows = np.concatenate([written[name][0] for name in CIFAR_BATCHES[:5]])
    assert np.array_equal(images.train.images.numpy(), rows.reshape(-1, 3, 32, 32))
    assert images.train.labels.tolist() == [label for name in CIFAR_BATCHES[:5] for label in written[name][1]]
    assert images.test.labels.tolist() == written["test_batch"][1]
    image, _ = images.test[1]
    green = (torch.from_numpy(written["test_batch"][0][1][1024:2048]).reshape(32, 32) / 255 - 0.4822) / 0.1994
    assert torch.allclose(image[1], green)


def damaged_idx(content):
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"is not there\. Put a whole copy there"),
        (lambda path: path.write_bytes(path.read_bytes()[:60]), r"cannot be unpacked \(Compressed file ended"),
        (damaged_idx(b"<html>404</html>"), r"cannot be unpacked \(Not a gzipped file"),
        (damaged_idx(gzip.compress(b"")), r"must begin with the bytes 0, 0, 8 of an idx file, got \[\]"),
        (
            damaged_idx(gzip.compress(b"\0\0\x0d\x01\0\0\0\x01abcd")),
            r"must begin with the bytes 0, 0, 8 of an idx file, got \[0, 0, 13\]",
        ),
        (damaged_idx(gzip.compress(b"\0\0\x08\x03\0\0")), r"must hold a whole header, got 0\."),
        (
            damaged_idx(gzip.compress(idx_bytes(np.zeros((4, 28, 28), np.uint8))[:-1])),
            r"must hold 4 x 28 x 28 bytes of data, got 3135\. Put a whole copy there, or delete it",
        ),
        (
            damaged_idx(gzip.compress(idx_bytes(np.zeros((4, 28, 28), np.uint8)))),
            r"train in .* must be images and as many labels, got shapes \(4, 28, 28\) and \(12,\)",
        ),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, damage, message):
    """A missing, truncated or wrong MNIST file is an error that names it and says what to do."""
    write_mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    damage(path)
    with pytest.raises(DataError, match=message) as caught:
        read_mnist(tmp_path)
    assert str(path.parent) in str(caught.value)


def test_a_truncated_cifar_archive_is_named(tmp_path):
    """An archive that is missing, cut off, or lacks a batch is an error that names it."""
    path = tmp_path / "cifar-10-python.tar.gz"
    with pytest.raises(DataError, match=f"{path} is not there"):
        read_cifar10(tmp_path)
    write_cifar(tmp_path)
    whole = path.read_bytes()
    for length in (0, 20, len(whole) // 2, len(whole) - 200):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=f"{re.escape(str(path))} cannot be unpacked"):
            read_cifar10(tmp_path)
    write_archive(path, {"cifar-10-batches-py/data_batch_1": python2_pickle({})})
    with pytest.raises(DataError, match=r"filename 'cifar-10-batches-py/test_batch' not found"):
        read_cifar(path, ["test_batch"])


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        ({}, "NoneType"),
        ([1, 2], "list"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "(2, 3072)"),
        ({b"data": np.zeros((1, 3072)), b"labels": [1]}, "(1, 3072)"),
        ({b"data": np.zeros((1, 10), np.uint8), b"labels": [1]}, "(1, 10)"),
    ],
)
def test_a_wrong_cifar_batch_is_named(tmp_path, batch, got):
    """A batch without a row of 3072 bytes for each label is an error that names the batch and the file."""
    path = tmp_path / "cifar-10-python.tar.gz"
    write_archive(path, {"cifar-10-batches-py/data_batch_1": python2_pickle(batch)})
    with pytest.raises(DataError) as caught:
        read_cifar(path, ["data_batch_1"])
    assert str(caught.value).startswith(f"data_batch_1 in {path} must hold ")
    assert f"rows of 3072 bytes, one for each label, got {got}. " in str(caught.value)


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path, capsys):
    """Only numpy's arrays are unpickled: a file that would call anything else is refused, and calls nothing."""
    path = tmp_path / "cifar-10-python.tar.gz"
    write_archive(path, {"cifar-10-batches-py/data_batch_1": pickle.dumps(Evil(), protocol=2)})
    with pytest.raises(DataError, match=r"it wants to call __builtin__\.print"):
        read_cifar(path, ["data_batch_1"])
    assert capsys.readouterr().out == ""


def test_the_first_images_of_a_set():
    """As many as asked for, or all that there are, still with their labels, mean and name."""
    whole = data.load()
    part = whole.first(100, 1000)
    assert (part.name, part.shape, len(part.train), len(part.test)) == ("digits", (1, 8, 8), 100, 360)
    assert all(map(torch.equal, part.train.batch(slice(None)), whole.train.batch(slice(100))))


def test_augmented_images_are_cut_out_of_a_wider_border():
    """Each is one of the 81 places of its own image, as it was or mirrored, and none of these is left out for long."""
    torch.manual_seed(0)
    images = torch.rand(3, 2, 6, 5)
    seen = set()
    for _ in range(300):
        for number, (image, found) in enumerate(zip(images, data.augment(images), strict=True)):
            wide = torch.nn.functional.pad(image, [4] * 4)
            ((y, x, mirrored),) = (
                (y, x, mirrored)
                for y in range(9)
                for x in range(9)
                for mirrored in (False, True)
                if torch.equal(found.flip(2) if mirrored else found, wide[:, y : y + 6, x : x + 5])
            )
            seen.add((number, "down", y))
            seen.add((number, "right", x))
            seen.add((number, "mirrored", mirrored))
    assert len(seen) == 3 * (9 + 9 + 2)


# --- downloads


@pytest.fixture
def publisher(tmp_path):
    """A folder with one published file, and its source by a file: address."""
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "numbers.bin").write_bytes(bytes(range(256)) * 1000)
    return Source((folder.as_uri() + "/",), {"numbers.bin": md5(folder / "numbers.bin")})


def test_a_file_is_downloaded_once(publisher, tmp_path, capsys):
    """A missing file comes with its progress on stderr; a whole one is left as it is."""
    here = tmp_path / "here"
    fetch(publisher, here)
    assert capsys.readouterr().err == "numbers.bin: 0.3 of 0.3 MB\n"
    assert checksum(here / "numbers.bin") == publisher.files["numbers.bin"]
    fetch(publisher, here)
    assert capsys.readouterr().err == ""
    assert [path.name for path in here.iterdir()] == ["numbers.bin"]


def test_a_damaged_file_is_downloaded_again(publisher, tmp_path):
    """A file that was cut off is replaced by a whole one."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "numbers.bin").write_bytes(b"half")
    fetch(publisher, here)
    assert checksum(here / "numbers.bin") == publisher.files["numbers.bin"]


def test_the_next_mirror_is_tried(publisher, tmp_path):
    """A mirror that does not have the file, and one that has another file, are passed over."""
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "numbers.bin").write_bytes(b"something else")
    nowhere = (tmp_path / "nowhere").as_uri() + "/"
    fetch(Source((nowhere, wrong.as_uri() + "/", *publisher.mirrors), publisher.files), tmp_path / "here")
    assert checksum(tmp_path / "here" / "numbers.bin") == publisher.files["numbers.bin"]


def test_a_failed_download_leaves_nothing_and_says_why(tmp_path):
    """A wrong checksum or a missing file is an error with each mirror's reason, and no part of a file stays."""
    wrong, here = tmp_path / "wrong", tmp_path / "here"
    wrong.mkdir()
    (wrong / "numbers.bin").write_bytes(b"something else")
    nowhere = (tmp_path / "nowhere").as_uri() + "/"
    with pytest.raises(DataError) as caught:
        fetch(Source((nowhere, wrong.as_uri() + "/"), {"numbers.bin": "0" * 32}), here)
    text = str(caught.value)
    assert text.startswith(f"{here / 'numbers.bin'} is missing and could not be downloaded ({nowhere}: ")
    assert f"the file that came has the checksum {md5(wrong / 'numbers.bin')}, not {'0' * 32}" in text
    assert text.endswith("Put a whole copy there.")
    assert list(here.iterdir()) == []


class HalfAFile(http.server.BaseHTTPRequestHandler):
    """A server that promises 1000 bytes and hangs up after 10."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"0123456789")

    def log_message(self, *args):
        pass


def test_a_connection_that_breaks_is_a_failed_download(tmp_path, monkeypatch):
    """A server that hangs up in the middle leaves no file, and the error says so."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.HTTPServer(("127.0.0.1", 0), HalfAFile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = Source((f"http://127.0.0.1:{server.server_port}/",), {"x.gz": "0" * 32})
        with pytest.raises(DataError, match=r"x\.gz is missing and could not be downloaded"):
            fetch(source, tmp_path)
        server.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_load_falls_back_only_when_asked(tmp_path, monkeypatch):
    """Without the files and without a network, load says what to do; with a fallback it warns and takes that."""
    source = Source(((tmp_path / "nowhere").as_uri() + "/",), {"cifar-10-python.tar.gz": "0" * 32})
    monkeypatch.setattr("distlab.data.sets.CIFAR10", source)
    with pytest.raises(DataError, match=r"is missing and could not be downloaded .* Or call load\('cifar10', fallback"):
        data.load("cifar10", root=tmp_path)
    with pytest.warns(UserWarning, match=r"could not be downloaded .* digits is loaded in its place\."):
        images = data.load("cifar10", root=tmp_path, fallback="digits")
    assert images.name == "digits"


def test_load_takes_files_that_are_there(tmp_path, monkeypatch):
    """Files in torchvision's folders are found, checked and read without any download."""
    write_mnist(tmp_path / "root")
    raw = tmp_path / "root" / "MNIST" / "raw"
    monkeypatch.setattr("distlab.data.sets.MNIST", Source((), {path.name: md5(path) for path in raw.iterdir()}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert data.load("mnist", root=tmp_path / "root", fallback="digits").name == "mnist"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "root").rename(tmp_path / "cache" / "distlab")
    assert len(data.load("mnist").train) == 12
