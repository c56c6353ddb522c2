"""Which sources are the learner's."""

import torch

from distlab.wire.source import is_learners


def test_a_cell_and_a_module_are_the_learners():
    """What is installed is not, in whichever environment, nor a program that is given with -c."""
    assert is_learners("/tmp/ipykernel_7/123.py")
    assert is_learners(__file__)
    assert not is_learners("<string>")
    assert not is_learners(torch.__file__)
    assert not is_learners("/elsewhere/lib/python3.9/site-packages/numpy/__init__.py")


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
