"""Moves the fragments in changes.d/ into CHANGELOG.md. Run by: whoever makes a release.

    python -m tools.changes

changes.d/README.md says what a fragment is.
"""

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "fixed")  # in this order in CHANGELOG.md


def fragments(folder: Path) -> list[Path]:
    """The fragments of a folder by their kinds, and by their names among those of one kind.

    Raises:
        ValueError: a file has no kind.
    """
    by_kind: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.glob("*")):
        if path.name == "README.md":
            continue
        kind = kind_of(path)
        if kind not in KINDS or path.suffix != ".md":
            names = ", ".join(f"NAME.{kind}.md" for kind in KINDS)
            raise ValueError(f"{path.name} must be named {names}.")
        by_kind[kind].append(path)
    found = []
    for paths in by_kind.values():
        found += paths
    return found


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
    text = "\n".join([changelog[:start] + section, *lines])
    if rest:
        return f"{text}\n\n{rest}"
    return f"{text}\n"


def main(root: Path = ROOT) -> None:
    """Move every fragment into the changelog."""
    changelog = root / "CHANGELOG.md"
    found = fragments(root / "changes.d")
    lines = []
    for path in found:
        words = path.read_text().split()
        lines.append(f"- {' '.join(words)}")
    if lines:
        changelog.write_text(with_lines(changelog.read_text(), lines))
    for path in found:
        path.unlink()
    print(f"{len(found)} changes moved into {changelog.name}")


if __name__ == "__main__":
    # it takes no arguments, and --help must not move anything
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
