"""What pages and first lines say about the package."""

import re

import distlab
from distlab import errors
from tests.tool import ROOT


def test_every_error_has_its_page():
    """A person who looks for an error's name finds what it means."""
    pages = "\n".join(path.read_text() for path in (ROOT / "docs/reports").glob("*.md"))
    assert [name for name in [*errors.ERROR_NAMES, "Interrupted"] if name not in pages] == []


def test_the_first_page_says_where_each_part_runs():
    """Every folder and file of distlab/ is in the table of its docstring."""
    parts = {
        path.stem
        for path in (ROOT / "distlab").iterdir()
        if path.stem not in ("__init__", "__pycache__") and path.suffix in ("", ".py")
    }
    table = distlab.__doc__[distlab.__doc__.index("Which process") :]
    assert {part for part in parts if not re.search(rf"\b{part}\b", table)} == set()
