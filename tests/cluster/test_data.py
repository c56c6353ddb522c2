"""distlab.data on real ranks: one of them downloads, the others wait longer than the group's timeout would let them."""

import time
import warnings

import pytest
import torch

import distlab
from distlab import data
from distlab.data import DataPartitioner, one_rank_first
from distlab.data.download import Source
from tests.data_files import md5, write_mnist


@pytest.fixture(scope="module")
def hasty(nothing_left):
    """Three ranks whose group gives up after two seconds."""
    with distlab.Cluster(3, timeout=2) as cluster:
        yield cluster


def sum_of_ranks(rank, world_size):
    tensor = torch.tensor([float(rank)])
    torch.distributed.all_reduce(tensor)
    return tensor.item()


@pytest.fixture
def usable(hasty):
    """The hasty cluster, which must still add up its ranks after the test."""
    yield hasty
    assert hasty.run(sum_of_ranks) == [3.0] * 3


def test_the_others_wait_beyond_the_timeout(usable, tmp_path):
    """A first call that takes longer than the timeout of the group ends well; the others begin after it has ended."""

    def slow_first(rank, world_size, folder):
        def work():
            began = time.monotonic()
            if rank == 0:
                time.sleep(3)
            (folder / f"rank{rank}").write_text("done")
            return began, time.monotonic(), sorted(path.name for path in folder.iterdir())

        return one_rank_first(work)

    (_, first_ended, files), *others = usable.run(slow_first, tmp_path)
    assert files == ["rank0"]
    for began, _, seen in others:
        assert began >= first_ended
        assert "rank0" in seen


def test_a_first_rank_that_fails_fails_them_all_at_once(usable):
    """The error of the first rank is raised there, and named on the others, which do not try themselves."""

    def failing(rank, world_size):
        calls = []

        def work():
            calls.append(rank)
            raise PermissionError("no room here")

        try:
            one_rank_first(work)
        except OSError as error:
            return type(error).__name__, str(error), calls

    assert usable.run(failing) == [
        ("PermissionError", "no room here", [0]),
        ("DataError", "The rank that came first failed. PermissionError: no room here", []),
        ("DataError", "The rank that came first failed. PermissionError: no room here", []),
    ]


def load_from(rank, world_size, source, root, fallback):
    """Load MNIST from a source of the test's own; the warnings, or the error's text."""
    from distlab.data import sets

    published, sets.MNIST = sets.MNIST, source
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            images = data.load("mnist", root=root, fallback=fallback)
        return repr(images), images.train.images.sum().item(), [str(warning.message) for warning in caught]
    except distlab.DataError as error:
        return str(error)
    finally:
        sets.MNIST = published


def test_one_rank_downloads_and_all_read(usable, tmp_path, capfd):
    """Every rank has the same images; only rank 0 tells of a download."""
    write_mnist(tmp_path / "published")
    folder = tmp_path / "published" / "MNIST" / "raw"
    source = Source((folder.as_uri() + "/",), {path.name: md5(path) for path in sorted(folder.iterdir())})
    results = usable.run(load_from, source, tmp_path / "here", None)
    assert results == [results[0]] * 3
    assert results[0][0] == "mnist: 12 images to train on, 5 to test with, each 1 x 28 x 28"
    told = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in told if line.startswith("rank")] == ["rank"]
    assert told[0].startswith("rank 0 stderr: t10k-images-idx3-ubyte.gz: 0.0 of 0.0 MB")
    assert len(told) == 4


def test_a_failed_download_is_the_same_on_every_rank(usable, tmp_path):
    """No rank has another data set than the rest: all raise, or all fall back."""
    source = Source(((tmp_path / "nowhere").as_uri() + "/",), {"train-images-idx3-ubyte.gz": "0" * 32})
    texts = usable.run(load_from, source, tmp_path / "here", None)
    assert all("is missing and could not be downloaded" in text for text in texts)
    assert all(text.endswith("Or call load('mnist', fallback=\"digits\").") for text in texts)
    results = usable.run(load_from, source, tmp_path / "here", "digits")
    assert {result[0] for result in results} == {"digits: 1437 images to train on, 360 to test with, each 1 x 8 x 8"}
    for _, _, warned in results:
        assert [text.endswith("digits is loaded in its place.") for text in warned] == [True]


def test_partitions_need_no_message(usable):
    """Ranks that cut the same data with the same seed have parts that do not overlap and leave nothing out."""

    def indices(rank, world_size):
        return DataPartitioner(range(100), [1 / world_size] * world_size).use(rank).indices

    parts = usable.run(indices)
    assert sorted(index for part in parts for index in part) == list(range(100))
