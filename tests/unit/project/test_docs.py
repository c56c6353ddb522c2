"""docs/: what the site says about the package's errors."""

from distlab import errors
from tests.tool import ROOT


def test_every_error_has_its_page():
    """A person who looks for an error's name finds what it means."""
    pages = "\n".join(path.read_text() for path in (ROOT / "docs/reports").glob("*.md"))
    assert [name for name in [*errors.NAMES, "Interrupted"] if name not in pages] == []
