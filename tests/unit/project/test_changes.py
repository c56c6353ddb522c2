"""Changes that wait for a release, as fragments."""

import pytest

from tests.tool import ROOT
from tools import changes

CHANGELOG = """# Changes

Text.

## 0.2.0, not released yet

- One.

## 0.1.0

- Old.
"""


def test_every_fragment_has_a_kind():
    assert changes.fragments(ROOT / "changes.d") is not None


def test_they_join_the_newest_version(tmp_path):
    """In the order of their kinds, each in one line; then they are gone."""
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    folder = tmp_path / "changes.d"
    folder.mkdir()
    for name, text in {"b.fixed": "A\nfix.\n", "c.added": "New.\n", "README": "No.\n"}.items():
        (folder / f"{name}.md").write_text(text)
    changes.main(tmp_path)
    expected = CHANGELOG.replace("- One.\n", "- One.\n- New.\n- A fix.\n")
    assert (tmp_path / "CHANGELOG.md").read_text() == expected
    assert [path.name for path in folder.iterdir()] == ["README.md"]


def test_they_join_the_only_version(tmp_path):
    changelog = CHANGELOG[: CHANGELOG.index("\n## 0.1.0")]
    assert changes.with_lines(changelog, ["- New."]) == changelog + "- New.\n"


def test_one_without_a_kind_is_refused(tmp_path):
    (tmp_path / "words.md").write_text("What?")
    with pytest.raises(ValueError, match=r"^words.md must be named NAME.added.md"):
        changes.fragments(tmp_path)
