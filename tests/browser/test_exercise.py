"""An exercise in a real JupyterLab: wrong, right, stuck, interrupted, and begun anew."""

import re

import pytest
from nbformat.v4 import new_code_cell

from distlab.launch import reaper
from tests.processes import marked, wait_until_gone

from .test_lab import LOOK_EVERY, STATE, foreign, open_notebook

CELLS = {
    "start": "import distlab\ncluster = distlab.Cluster(4)\ncluster.push({'kept': 7})",
    "wrong": (
        "def scale_by_rank(tensor):\n"
        "    tensor + rank\n\n"
        "distlab.check('scale_by_rank', scale_by_rank)"
    ),
    "right": (
        "def scale_by_rank(tensor):\n"
        "    tensor *= rank\n\n"
        "distlab.check('scale_by_rank', scale_by_rank)"
    ),
    "loops": "%%px\nif rank == 3:\n    while True:\n        pass\ndist.barrier()",
    "next": "%%px\nt = torch.tensor([rank])\ndist.all_reduce(t)\nprint(t.item(), kept)",
}
pytestmark = pytest.mark.timeout(900)


def shown(page, place, meanwhile=lambda: None):
    """Run the selected cell, the one at that place, and return what it shows in the end."""
    page.locator(".jp-Toolbar").get_by_title("Run this cell and advance").first.click()
    meanwhile()
    page.wait_for_function(
        f"() => {{ const state = ({STATE})(); "
        f"return state.kernel === 'idle' && state.cells[{place}].execution_count !== null; }}",
        polling=LOOK_EVERY,
    )
    return (
        page.locator(".jp-Notebook .jp-CodeCell").nth(place).locator(".jp-OutputArea").inner_text()
    )


def test_a_learner_solves_an_exercise(page, lab):
    """Wrong gets its grid, right passes; Interrupt frees the ranks, a restart ends them."""
    lab.write("solving.ipynb", map(new_code_cell, CELLS.values()))
    open_notebook(page, lab, "solving.ipynb")
    page.locator(".jp-Notebook .jp-Cell").first.locator(".jp-InputPrompt").click()
    shown(page, 0)
    grid = " ".join(shown(page, 1).split())
    assert (
        "2.1 In place: not yet With 2 ranks and 8 numbers of float32 it gives wrong values:" in grid
    )
    assert "The tensor is unchanged, but the result has to be written into it." in grid
    right = " ".join(shown(page, 2).split())
    assert "2.1 In place: passed 15 cases with 2, 3 and 4 ranks. Next: 3.1 Roles" in right

    def interrupt():
        # what is shown meanwhile: words, then a picture
        page.get_by_text(re.compile(r"^\d+ s(: |$)")).first.wait_for()
        page.locator(".jp-RenderedHTML svg").get_by_text("rank 0").first.wait_for()
        page.locator(".jp-Toolbar").get_by_title("Interrupt the kernel").first.click()

    assert "Interrupted" in shown(page, 3, interrupt)
    assert page.locator(".jp-RenderedHTML svg").count() == 0
    assert shown(page, 4).strip().endswith("6 7")

    def ranks():
        """The processes of clusters that this laboratory has started."""
        return {p.pid for p in marked(reaper.TAG, "")} & {
            p.pid for p in marked("DISTLAB_TEST_MARK", lab.mark)
        }

    assert len(ranks()) >= 4
    page.locator('.lm-MenuBar-itemLabel:text-is("Kernel")').click()
    page.locator('.lm-Menu-itemLabel:text-is("Restart Kernel…")').click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    assert not wait_until_gone(ranks)
    assert foreign(page.requested) == []
    assert lab.stop() == []
