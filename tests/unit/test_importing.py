"""Which imports a KeyboardInterrupt must not tear: looked at from inside of real ones, as in a cell."""

import importlib
import sys

import pytest

from distlab import sentinel, state

LOOK = "import sys\nfound = sys.look(sys._getframe())\n"
STRING = "import sys\nfound = eval(compile('sys.look(sys._getframe())', '<string>', 'eval'))\n"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A folder of the learner's and one of installed packages; what is imported asks whether it may be torn."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(installed), *sys.path])
    monkeypatch.setattr(sys, "look", sentinel.importing, raising=False)
    monkeypatch.setattr(state, "executing", lambda frame: True)
    yield tmp_path, installed
    for name in ("learners_module", "library_module"):
        sys.modules.pop(name, None)


def looked(name):
    importlib.invalidate_caches()
    return importlib.import_module(name).found


@pytest.mark.parametrize("text", [LOOK, STRING], ids=["its own line", "a line that it compiled"])
def test_a_librarys_import_is_not_torn(folders, text):
    """Neither in the library's own lines nor in what it compiles from text, as namedtuple does."""
    (folders[1] / "library_module.py").write_text(text)
    assert looked("library_module")


def test_a_learners_module_may_be_torn(folders):
    """It is the learner's code that runs there."""
    (folders[0] / "learners_module.py").write_text(LOOK)
    assert not looked("learners_module")


def test_a_library_that_a_learners_module_imports_is_not_torn(folders):
    """Nor a library that imports a learner's module."""
    (folders[0] / "learners_module.py").write_text("from library_module import found\n")
    (folders[1] / "library_module.py").write_text(LOOK)
    assert looked("learners_module")
    sys.modules.pop("learners_module"), sys.modules.pop("library_module")
    (folders[0] / "learners_module.py").write_text(LOOK + "# once more\n")
    (folders[1] / "library_module.py").write_text("from learners_module import found\n")
    assert looked("library_module")


def test_outside_of_an_import_nothing_is_protected(folders):
    """A function of a library is no import, and neither is what the engine imports between two cells."""
    assert not sentinel.importing(sys._getframe())
    (folders[1] / "library_module.py").write_text(LOOK)
    state.executing = lambda frame: False
    assert not looked("library_module")
