"""Takes docs/deadlock.png: a deadlock and its report in a real JupyterLab, run just now.

It needs Chromium. Called by a person, when the report looks different: python tools/screenshot.py
"""

import shutil
import sys
import tempfile
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.conftest import BROWSERS, Lab  # noqa: E402
from tests.browser.test_lab import STATE, open_notebook  # noqa: E402

CELLS = [
    (
        "import sys\n"
        "import distlab\n"
        "from distlab_course import figures\n\n"
        "cluster = distlab.Cluster(4)"
    ),
    (
        "%%px\n"
        "right, left = (rank + 1) % world_size, (rank - 1) % world_size\n"
        "mine, theirs = torch.ones(1) * rank, torch.zeros(1)\n"
        "dist.recv(theirs, src=left)\n"
        "dist.send(mine, dst=right)"
    ),
    "figures.who_waits(sys.last_value)",
]


def notebook_cells() -> list[NotebookNode]:
    """The cells of the notebook; the second one is meant to raise."""
    cells = [new_code_cell(source) for source in CELLS]
    for cell in cells:
        cell.metadata.tags = []
    cells[1].metadata.tags = ["raises-exception"]
    return cells


def browser() -> str:
    """The path of the first browser that is here."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path:
            return path
    raise SystemExit(f"None of these is installed: {', '.join(BROWSERS)}.")


def main() -> int:
    """Run the notebook in JupyterLab, cell by cell, and take the picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        lab = Lab(Path(folder))
        try:
            lab.wait_until_up()
            lab.write("a.ipynb", notebook_cells())
            chromium = playwright.chromium.launch(executable_path=browser())
            size = {"width": 1130, "height": 1100}
            page = chromium.new_page(viewport=size, device_scale_factor=1.5)
            page.set_default_timeout(200_000)
            open_notebook(page, lab, "a.ipynb")
            # folds the list of files
            page.locator(".jp-SideBar .lm-TabBar-tab.lm-mod-current").first.click()
            page.locator(".jp-CodeCell .cm-content").first.click()
            for number in range(len(CELLS)):
                page.keyboard.press("Shift+Enter")
                ran = f"n => (s => s.cells[n].execution_count && s.kernel == 'idle')(({STATE})())"
                page.wait_for_function(ran, arg=number)
                page.wait_for_timeout(6000)  # as a person would: what has started has come to rest
            notebook = page.locator(".jp-WindowedPanel-viewport").first
            notebook.screenshot(path=ROOT / "docs" / "deadlock.png")
        finally:
            lab.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
