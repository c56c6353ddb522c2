"""Builds dist/colab/: every notebook as one file that runs without this project.

Called by: make colab. Each file carries the package's wheel in its first code cell, its diagrams in
its text, and in cells the scripts that it runs, so that uploading the one file to Colab (or to any
Jupyter with torch) is enough. Links to files that do not travel with it become plain words.
"""

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent

# Torch and numpy are the machine's own: on Colab they match its drivers, so pip may not exchange
# them.
INSTALL_CELL = """\
# @title Install distlab: run this cell first {{ display-mode: "form" }}
# The package is inside this cell. Where distlab is already installed, nothing happens.
import importlib.util


def install_distlab():
    import base64, importlib.metadata, pathlib, site, tempfile

    folder = pathlib.Path(tempfile.mkdtemp(prefix="distlab-"))
    wheel = folder / "{name}"
    wheel.write_bytes(base64.b64decode("{data}"))
    pins = folder / "constraints.txt"  # torch and numpy stay as they are
    kept = {{name: importlib.metadata.version(name) for name in ("torch", "numpy")}}
    pins.write_text("".join(f"{{name}}=={{version}}\\n" for name, version in kept.items()))
    %pip install -q --constraint "{{pins}}" "{{wheel}}{extras}" ipyparallel
    importlib.invalidate_caches()
    # pip may have made a user's folder that is new to this kernel
    if importlib.util.find_spec("distlab") is None:
        site.addsitedir(site.getusersitepackages())
    if importlib.util.find_spec("distlab") is None:
        needs = "Python 3.10 or newer and torch 2.13 or newer"
        raise RuntimeError(
            f"distlab could not be installed: read pip's message above. It needs {{needs}}."
        )


if importlib.util.find_spec("distlab") is None:
    install_distlab()
"""


# what is not so in a built file, and what is
FOLDED = "The outputs of the programs are folded until you run the cells."
LEFT_OUT = "The outputs of the programs are left out: you see them when you run the cells."


def build_wheel(root: Path, folder: Path) -> Path:
    """Build the wheel of the project at `root` into `folder`, with what is installed here.

    It is built from a copy without the lessons, because each file is one of them.
    """
    with tempfile.TemporaryDirectory(prefix="distlab-wheel-") as temporary:
        copy = Path(temporary)
        copy_without_lessons(root, copy)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
        command += ["--outdir", str(folder), str(copy)]
        done = subprocess.run(
            command,
            # A fixed time makes the same sources give the same bytes.
            env={**os.environ, "SOURCE_DATE_EPOCH": "1577836800"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        end = done.stdout[-2000:] + done.stderr[-2000:]
        raise SystemExit(f"{end}\nThe wheel could not be built; see above.")
    (wheel,) = folder.glob("distlab-*.whl")
    return wheel


def copy_without_lessons(root: Path, folder: Path) -> None:
    """Copy what a wheel without lessons is built from."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("distlab", "distlab_predict", "distlab_course"):
        shutil.copytree(root / package, folder / package, ignore=ignored)


def install_cell(wheel: Path, extras: str) -> nbformat.NotebookNode:
    """The first code cell: it unpacks the wheel that it holds, and installs it.

    Its `extras` and ipyparallel are installed as well.
    """
    data = base64.b64encode(wheel.read_bytes()).decode()
    source = INSTALL_CELL.format(name=wheel.name, data=data, extras=extras)
    cell = nbformat.v4.new_code_cell(
        source.rstrip("\n"), metadata={"jupyter": {"source_hidden": True}}
    )
    cell["id"] = "install-distlab"
    return cell


def picture(path: Path) -> str:
    """A diagram as a data: address of its PNG, which Colab, JupyterLab and VS Code all show.

    VS Code refuses data: addresses of SVG, and Colab does not reliably show attachments.
    """
    png = path.with_suffix(".png")
    if not png.is_file():
        raise SystemExit(f"{path} has no PNG beside it. Run make figs first.")
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()


def is_local(target: str) -> bool:
    return not re.match(r"([a-z][a-z0-9+.-]*:|#|//)", target, flags=re.IGNORECASE)


def carry(text: str, folder: Path) -> str:
    """Markdown that needs no other file: pictures inside, links to local files as plain words.

    Code is left alone.
    """

    def image(match: re.Match) -> str:
        before, target, after = match.groups()
        if not is_local(target):
            return match.group()
        return before + picture(folder / target) + after

    def link(match: re.Match) -> str:
        words, target = match.groups()
        if not is_local(target):
            return match.group()
        return words

    parts = re.split(r"(```.*?```|~~~.*?~~~|`[^`\n]*`)", text, flags=re.DOTALL)
    for index in range(0, len(parts), 2):
        part = re.sub(r"(!\[[^\]]*\]\()([^)\s]+)([^)]*\))", image, parts[index])
        part = re.sub(r"(<img\b[^>]*?\bsrc=[\"'])([^\"']+)([\"'])", image, part)
        parts[index] = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)[^)]*\)", link, part)
    # A link whose words are code is cut by the split above: [`name`](file).
    return re.sub(r"(?<!!)\[(`[^`\n]+`)\]\(([^)\s]+)[^)]*\)", link, "".join(parts))


def convert(path: Path, wheel: Path) -> nbformat.NotebookNode:
    """The notebook at `path` as one that runs alone.

    Its saved outputs stay, for reading before running, but for those that a learner is to predict:
    Jupyter folds them, and Colab does not know how.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = carry(cell.source, path.parent).replace(FOLDED, LEFT_OUT)
        elif cell.metadata.get("jupyter", {}).get("outputs_hidden"):
            cell.outputs = []
            cell.execution_count = None
    kinds = [cell.cell_type for cell in notebook.cells]
    first_code = kinds.index("code")
    extras = "[course]"
    if is_in_a_cell('engines="mpi"', notebook):
        extras = "[course,mpi]"
    for script in sorted(path.parent.glob("*.py")):
        if is_in_a_cell(script.name, notebook):
            source = f"%%writefile {script.name}\n{script.read_text()}"
            notebook.cells.insert(first_code, nbformat.v4.new_code_cell(source.rstrip("\n")))
    notebook.cells.insert(first_code, install_cell(wheel, extras))
    notebook.metadata["colab"] = {"name": path.name, "provenance": []}
    return notebook


def is_in_a_cell(words: str, notebook: nbformat.NotebookNode) -> bool:
    """Whether a cell of the notebook has these words."""
    return any(words in cell.source for cell in notebook.cells)


def build(root: Path, notebooks: list[Path], folder: Path) -> list[Path]:
    """Build one file in `folder` for each notebook, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    built = []
    with tempfile.TemporaryDirectory(prefix="distlab-wheel-") as temporary:
        wheel = build_wheel(root, Path(temporary))
        for path in notebooks:
            nbformat.write(convert(path, wheel), folder / path.name)
            built.append(folder / path.name)
    return built


def main() -> None:
    """Build all files anew, and say how large they are."""
    folder = ROOT / "dist" / "colab"
    for old in folder.glob("*.ipynb"):
        old.unlink()
    notebooks = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    for path in build(ROOT, notebooks, folder):
        print(f"{path}   {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
