"""Moves the fragments in changes.d/ into CHANGELOG.md. Run by: whoever makes a release.

    python -m tools.changes

changes.d/README.md says what a fragment is.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "fixed")  # in this order in CHANGELOG.md


def fragments(folder: Path) -> list[Path]:
    """The fragments of a folder by their kinds, and by their names among those of one kind.

    Raises:
        ValueError: a file has no kind.
    """
    found = [path for path in sorted(folder.glob("*")) if path.name != "README.md"]
    for path in found:
        if kind_of(path) not in KINDS or path.suffix != ".md":
            kinds = ", ".join(f"NAME.{kind}.md" for kind in KINDS)
            raise ValueError(f"{path.name} must be named {kinds}.")
    return sorted(found, key=lambda path: KINDS.index(kind_of(path)))


def kind_of(path: Path) -> str:
    """The word before the last suffix of a fragment's name."""
    return path.stem.rpartition(".")[2]


def with_lines(changelog: str, lines: list[str]) -> str:
    """The changelog with more lines at the end of its first section, that of the newest version."""
    start = changelog.index("\n## ") + 1
    end = changelog.find("\n## ", start)
    if end == -1:
        end = len(changelog)
    section = changelog[start:end].rstrip("\n")
    rest = changelog[end:].lstrip("\n")
    parts = [changelog[:start] + section, *lines]
    return "\n".join(parts) + ("\n\n" + rest if rest else "\n")


def main(root: Path = ROOT) -> None:
    """Move every fragment into the changelog."""
    changelog = root / "CHANGELOG.md"
    found = fragments(root / "changes.d")
    lines = [f"- {' '.join(path.read_text().split())}" for path in found]
    if lines:
        changelog.write_text(with_lines(changelog.read_text(), lines))
    for path in found:
        path.unlink()
    print(f"{len(found)} changes moved into {changelog.name}")


if __name__ == "__main__":
    main()
