"""What is said of files that were saved while ranks were preempted."""

import os
import time

import pytest
import torch

from distlab.notebook.saved_files import saved_files
from distlab.wire.messages import SAVE_BEGAN, SAVE_ENDED, Moment


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words_of(moments, since, n=2):
    found = saved_files([(0, moment) for moment in moments], since, n)
    return {file.path: (file.words, ranks) for file, ranks in found}


def moments_of(path, clock):
    return [Moment(SAVE_BEGAN, clock, words=str(path)), Moment(SAVE_ENDED, clock, words=str(path))]


def test_files(here):
    """A whole one, one that was cut off, one that is empty, and one of another format."""
    since = time.time()
    moments = []
    for name in ("whole.pt", "cut.pt", "empty.pt"):
        torch.save({"weight": torch.ones(100)}, here / name)
        moments += moments_of(here / name, since)
    whole = (here / "cut.pt").read_bytes()
    (here / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (here / "empty.pt").write_bytes(b"")
    words = words_of(moments, since)
    assert words["whole.pt"] == ("complete: it can be loaded", (0,))
    assert words["cut.pt"][0].startswith("not complete")
    assert words["empty.pt"][0] == "empty"


def test_a_damaged_file(here):
    """Its table of contents is there, and what it says of the contents is not so."""
    since = time.time()
    torch.save({"weight": torch.ones(1000)}, here / "a.pt")
    data = bytearray((here / "a.pt").read_bytes())
    middle = data.find(torch.ones(8).numpy().tobytes())
    data[middle] ^= 1
    (here / "a.pt").write_bytes(bytes(data))
    assert words_of(moments_of(here / "a.pt", since), since)["a.pt"][0].startswith("damaged: ")


def test_a_file_that_was_renamed(here):
    """It was written beside the old one and put in its place, as it should be."""
    since = time.time()
    torch.save({}, here / "a.pt.partial")
    os.replace(here / "a.pt.partial", here / "a.pt")
    torch.save({}, here / "b.pt")
    moments = [*moments_of(here / "a.pt.partial", since), *moments_of(here / "b.pt", since)]
    complete = ("complete: it can be loaded", (0,))
    assert words_of(moments, since) == {"a.pt": complete, "b.pt": complete}


def test_only_what_was_not_complete_when_the_signal_came(here):
    """A save that had ended is not told, and one that was under way is."""
    torch.save({}, here / "a.pt")
    torch.save({}, here / "b.pt")
    began, _ = moments_of(here / "b.pt", 100.0)
    moments = [*moments_of(here / "a.pt", 100.0), began]
    assert list(words_of(moments, 200.0)) == ["b.pt"]


def test_folders_of_shards(here):
    """The .metadata is written last: what lacks it is not complete, nor with an old one."""
    since = time.time()
    folder = here / "step_3"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"x")
    moments = moments_of(f"{folder}{os.sep}", since)
    words = "lacks .metadata: the save had not finished; no new file of rank 1"
    assert words_of(moments, since) == {"step_3/": (words, (0,))}
    (folder / ".metadata").write_bytes(b"x")
    assert words_of(moments, since)["step_3/"][0].startswith("complete")
    os.utime(folder / ".metadata", (since - 100, since - 100))
    assert words_of(moments, since)["step_3/"][0].startswith("its .metadata is older")
