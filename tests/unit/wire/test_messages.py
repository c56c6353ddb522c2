"""Which sources are the learner's."""

import torch

from distlab.wire.source import PACKAGE, Line, is_learners, line_of


def test_a_cell_and_a_module_are_the_learners():
    """What is installed is not, in whichever environment, nor a program that is given with -c."""
    assert is_learners("/tmp/ipykernel_7/123.py")
    assert is_learners(__file__)
    assert not is_learners("<string>")
    assert not is_learners(torch.__file__)
    assert not is_learners("/elsewhere/lib/python3.9/site-packages/numpy/__init__.py")


def test_a_package_beside_distlab_is_the_learners():
    """Of an editable checkout, but for the packages that come with it."""
    assert is_learners(f"{PACKAGE}_of_mine.py")
    assert is_learners(f"{PACKAGE}_of_mine/layers.py")
    assert not is_learners(f"{PACKAGE}_course/ring.py")
    assert not is_learners(f"{PACKAGE}_predict/recorder.py")


def test_a_file_is_of_a_cell_only_in_the_folder_of_its_process(monkeypatch):
    """The number of one process may begin that of another one."""
    monkeypatch.setattr("os.getpid", lambda: 123)
    assert line_of("/tmp/ipykernel_123/5.py", 3, "f").file == ""
    another = "/tmp/ipykernel_1234/5.py"
    assert line_of(another, 3, "f").file == another
    assert Line(3, "", file=another).position == "line 3"
    assert Line(3, "", file="/home/me/ipykernel_demo/train.py").position == "train.py:3"
    assert Line(3, "", file="/home/me/ipykernel_1/work/train.py").position == "train.py:3"


def test_what_is_typed_without_a_file_is_the_learners():
    assert is_learners("<stdin>")
    assert is_learners("<ipython-input-3-1b2c>")


def test_code_that_a_library_has_generated_is_not_the_learners(tmp_path, monkeypatch):
    """torch.fx names its code so, and torch.compile writes files into a folder."""
    own = tmp_path / "cache" / "ab" / "cabc.py"
    assert is_learners(str(own))
    is_learners.cache_clear()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert not is_learners(str(own))
    assert is_learners(str(tmp_path / "cached.py"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    is_learners.cache_clear()
    assert not is_learners("/tmp/torchinductor_me/ab/cabc.py")
    assert is_learners("/home/me/torchinductor_notes.py")
    for name in (
        "<eval_with_key>.3",
        "<eval_with_key>.3 from /home/me/train.py:5 in forward",
        "<template>",
    ):
        assert not is_learners(name)
