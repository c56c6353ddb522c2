"""The first lesson in a real JupyterLab, as a learner sees it."""

import json
from urllib.parse import urlsplit

import nbformat
import pytest
from nbformat.v4 import new_code_cell

LESSON = "00_start_here.ipynb"
RUN_SECONDS = 600  # for the lesson on a busy machine; it takes less than a minute
# Milliseconds between two looks at STATE while cells run. By itself, Playwright looks at each frame
# that the page draws, and takes the whole notebook apart each time.
LOOK_EVERY = 250

# The open notebook as it stands in the page: code cells with their outputs, and whether the kernel
# is idle.
STATE = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const model = panel?.content?.model?.sharedModel;
  if (!model) return null;
  return {kernel: panel.sessionContext.session?.kernel?.status ?? null,
          cells: model.toJSON().cells.filter(cell => cell.cell_type === "code")};
}"""

pytestmark = pytest.mark.timeout(900)


def open_notebook(page, lab, name):
    """Opens a notebook and returns when its kernel is idle."""
    page.goto(lab.address(f"lab/tree/notebooks/{name}"))
    page.wait_for_selector(".jp-Notebook")
    page.wait_for_function(f"() => ({STATE})()?.kernel === 'idle'")


def run_all(page):
    """Run every cell by the menu, and return the code cells with their outputs."""
    page.locator('.lm-MenuBar-itemLabel:text-is("Run")').click()
    page.locator('.lm-Menu-itemLabel:text-is("Run All Cells")').click()
    # An executed cell has its count; the one that is running, and those that wait, have none, also
    # behind an error.
    page.wait_for_function(
        f"""() => {{ const state = ({STATE})();
          const failed = cell => cell.outputs.some(output => output.output_type === "error")
            && !cell.metadata.tags?.includes("raises-exception");
          const counted = cell => cell.execution_count !== null;
          return state?.kernel === "idle"
            && (state.cells.some(failed) || state.cells.every(counted)); }}""",
        timeout=RUN_SECONDS * 1000,
        polling=LOOK_EVERY,
    )
    return page.evaluate(STATE)["cells"]


def foreign(urls):
    """Requests that left this machine."""
    return [url for url in urls if urlsplit(url).hostname not in ("127.0.0.1", None)]


def test_the_first_lesson_runs(page, lab):
    """Run All Cells shows what ranks printed and no error, and leaves no process behind.

    No popup about news or updates stands in front of the text, and the diagrams are drawn.
    """
    cells = nbformat.read(lab.root / "notebooks" / LESSON, 4).cells
    # without the committed outputs, so that all that is seen afterwards was made by this run
    lab.write(
        LESSON,
        [
            new_code_cell(c.source, metadata=c.metadata) if c.cell_type == "code" else c
            for c in cells
        ],
    )
    open_notebook(page, lab, LESSON)
    cells = run_all(page)

    # an error ends the run
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(f"rank {rank}" in json.dumps(cells) for rank in range(2))
    # the question about news came a moment after the notebook
    assert page.locator(".Toastify__toast").count() == 0
    page.wait_for_function(
        "() => [...document.images].every(image => image.complete && image.naturalWidth > 0)"
    )
    assert foreign(page.requested) == []
    assert page.complaints == []
    assert lab.stop() == []
