"""distlab_course.data on real ranks: one downloads, the others wait beyond the timeout."""

import time

import pytest

import distlab
from distlab_course import data
from distlab_course.data import one_rank_first
from tests.data_files import md5, serving, write_mnist
from tests.refused import raised

CLUSTER = {"n": 3, "timeout": 2}  # a group that soon gives up


def test_the_others_wait_beyond_the_timeout(usable, tmp_path):
    """The others begin after the first call has ended, although it took longer."""

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
    """The first rank's error is raised there and named on the others, which do not try."""

    def failing(rank, world_size):
        calls = []

        def work():
            calls.append(rank)
            raise PermissionError("no room here")

        error = raised(OSError, one_rank_first, work)
        return type(error).__name__, str(error), calls

    assert usable.run(failing) == [
        ("PermissionError", "no room here", [0]),
        ("DataError", "The rank that came first failed. PermissionError: no room here", []),
        ("DataError", "The rank that came first failed. PermissionError: no room here", []),
    ]


def load_from(rank, world_size, address, files, root):
    """Load MNIST from a server of the test's own: what came, or the error's text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "127.0.0.1")
        patch.setitem(data.ADDRESSES, "mnist", address)
        patch.setitem(data.FILES, "mnist", files)
        try:
            images = data.load("mnist", root=root)
            return repr(images), images.train.images.sum().item()
        except distlab.errors.DataError as error:
            return str(error)


def test_one_rank_downloads_and_all_read(usable, tmp_path, capfd):
    """Every rank has the same images, and only rank 0 tells of the download, once.

    A download that fails is an error on every rank, and leaves no part of a file.
    """
    write_mnist(tmp_path / "published")
    folder = tmp_path / "published" / "MNIST" / "raw"
    files = {path.name: md5(path) for path in sorted(folder.iterdir())}
    here = tmp_path / "here" / "MNIST" / "raw"
    here.mkdir(parents=True)
    (here / "train-images-idx3-ubyte.gz").write_bytes(b"half")
    missing = {"no_such_file": "0" * 32}
    with serving(folder) as address:
        results = usable.run(load_from, address, files, tmp_path / "here")
        shown = capfd.readouterr().out
        for text in usable.run(load_from, address, missing, tmp_path / "elsewhere"):
            assert "no_such_file is missing or damaged, and could not be downloaded (" in text
            assert "File not found" in text
    assert results == [results[0]] * 3
    assert results[0][0] == "mnist: 12 images to train on, 5 to test with, each 1 x 28 x 28"
    (line,) = [line for line in shown.splitlines() if line.startswith("rank")]
    assert line.split()[:2] == ["rank", "0"]
    assert shown.count("Downloading data from ") == 3
    assert shown.count("Updating data from ") == 1
    assert {path.name: md5(path) for path in here.iterdir()} == files
    assert not any(path.is_file() for path in (tmp_path / "elsewhere").rglob("*"))
    # where nobody answers
    assert usable.run(load_from, "http://127.0.0.1:9/", files, tmp_path / "here") == results
