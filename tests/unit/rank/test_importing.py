"""Which imports a KeyboardInterrupt must not tear, looked at from inside of real ones."""

import importlib
import sys

import pytest

from distlab.rank import frames

LOOK = "import sys\nfound = sys.look(sys._getframe())\n"
STRING = "import sys\nfound = eval(compile('sys.look(sys._getframe())', '<string>', 'eval'))\n"
OF_LIBRARY, OF_LEARNER = "from library_module import found\n", "from learners_module import found\n"


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Import the last module, in a learner's folder or a package's: whether it may be torn."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(installed), *sys.path])
    monkeypatch.setattr(sys, "look", frames.is_importing, raising=False)

    def found(**modules):
        for name, text in modules.items():
            folder = installed if name == "library_module" else tmp_path
            (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name).found

    yield found
    for name in ("learners_module", "library_module"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("modules", "protected"),
    [
        ({"library_module": LOOK}, True),
        ({"library_module": STRING}, True),  # as namedtuple does
        ({"learners_module": LOOK}, False),
        ({"library_module": LOOK, "learners_module": OF_LIBRARY}, True),
        ({"learners_module": LOOK, "library_module": OF_LEARNER}, True),
    ],
    ids=[
        "a library",
        "what it compiles from text",
        "a learner's module",
        "a library in it",
        "it in a library",
    ],
)
def test_only_a_learners_own_import_may_be_torn(imported, modules, protected):
    """A library that is half imported stays broken."""
    assert imported(**modules) == protected


def test_outside_of_an_import_nothing_is_protected():
    """A function of a library is no import."""
    assert not frames.is_importing(sys._getframe())
