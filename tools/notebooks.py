"""Runs notebooks top to bottom, in place, and saves their outputs. Called by: make notebooks.

Arguments are the notebooks to run; none means all of notebooks/. What differs from run to run
without being part of the lesson (times, the Python version, how a stream was cut into messages) is
not saved: a refresh changes little. Pictures are saved with few colours, which keeps the repository
small. A notebook that fails is left as it was.
"""

import base64
import io
import os
import sys
import time
from pathlib import Path

import nbformat
import numpy as np
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
KEPT_METADATA = ("tags", "jupyter", "not_compared")
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# nbconvert makes a script by these; the author's version of Python is not among them
LANGUAGE = {
    "name": "python",
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "nbconvert_exporter": "python",
}
CELL_TIMEOUT = 300


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook at `path` with fresh outputs; cells tagged raises-exception may raise."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        # the kernel's warnings are about its transport, not about the lesson
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    return notebook


def normalise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop from `notebook`, in place, the metadata that changes without the lesson changing."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": LANGUAGE})
    for cell in notebook.cells:
        kept = {key: value for key, value in cell.metadata.items() if key in KEPT_METADATA}
        cell.metadata = nbformat.from_dict(kept)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = fewer_colors(data["image/png"])
    return notebook


def fewer_colors(png: str) -> str:
    """A picture in base64 with its 256 most frequent colours, which is a third of the bytes.

    A rarer colour, as at the edge of a letter, becomes the nearest of them, and areas keep theirs:
    what a legend tells apart stays apart. A picture stays as it was where that is no smaller.
    """
    content = io.BytesIO(base64.b64decode(png))
    drawn = Image.open(content).convert("RGBA")
    page = Image.new("RGBA", drawn.size, "white")
    page.alpha_composite(drawn)
    pixels = np.asarray(page.convert("RGB")).reshape(-1, 3).astype(int)
    codes = pixels @ (65536, 256, 1)
    found, place, counts = np.unique(codes, return_inverse=True, return_counts=True)
    colors = np.stack((found // 65536, found // 256 % 256, found % 256), axis=1)
    palette = colors[np.argsort(-counts, kind="stable")[:256]]
    nearest = [np.abs(palette - color).sum(axis=1).argmin() for color in colors]
    few = Image.fromarray(np.array(nearest, dtype=np.uint8)[place].reshape(page.size[::-1]))
    few.putpalette(palette.astype(np.uint8).tobytes())
    with_fewer = io.BytesIO()
    few.save(with_fewer, "PNG", optimize=True)
    smaller = base64.b64encode(with_fewer.getvalue()).decode()
    if len(smaller) < len(png):
        return smaller
    return png


def main(arguments: list[str]) -> int:
    """Run the notebooks, and return the exit status: 1 if one failed, 2 if one is not there."""
    paths = [Path(argument).resolve() for argument in arguments]
    if not paths:
        paths = sorted((ROOT / "notebooks").rglob("[0-9]*.ipynb"))
    # what the reader has passed is no part of the lesson
    os.environ["DISTLAB_PROGRESS"] = os.devnull
    failed = 0
    for path in paths:
        if not path.is_file():
            print(
                f"NB must be a notebook, got {str(path)!r}. "
                "Try: make notebooks NB=notebooks/00_start_here.ipynb"
            )
            return 2
        print(f"{path.name} ...", end=" ", flush=True)
        started = time.perf_counter()
        try:
            notebook = normalise(execute(path))
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"FAILED, and left as it was\n{error}")
            failed = 1
            continue
        nbformat.write(notebook, path)
        print(f"{time.perf_counter() - started:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
