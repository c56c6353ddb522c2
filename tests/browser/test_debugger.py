"""breakpoint() on ranks in a real JupyterLab: a person types into the debugger's box."""

import pytest
from nbformat.v4 import new_code_cell

from tests.browser.test_lab import STATE, open_notebook

STOPS = """%%px
import os
x = torch.ones(1) * rank
while rank == 2 and not os.path.exists("go"):
    pass
if rank > 0:
    breakpoint()
dist.all_reduce(x)
print(f"the sum is {x.item():g}")"""
# JupyterLab keeps a box, and the focus in it, for half a second after its line was sent
READY = """prompt => {
  const box = [...document.querySelectorAll(".jp-Stdin")].at(-1);
  const input = box?.querySelector("input");
  const isReady = input === document.activeElement && !input.value;
  return isReady && box.innerText.trim().startsWith(prompt);
}"""

pytestmark = pytest.mark.timeout(600)


def test_a_rank_is_debugged_in_the_notebook(page, lab, tmp_path):
    """Two ranks take turns in the box of JupyterLab; `q` frees a later cell; nothing is left."""
    start = "import distlab\n%load_ext distlab\ncluster = distlab.Cluster(3)"
    lab.write("stops.ipynb", [new_code_cell(start), new_code_cell(STOPS), new_code_cell(STOPS)])
    open_notebook(page, lab, "stops.ipynb")
    page.locator('.lm-MenuBar-itemLabel:text-is("Run")').click()
    page.locator('.lm-Menu-itemLabel:text-is("Run All Cells")').click()

    def type_line(prompt, line):
        page.wait_for_function(READY, arg=prompt)
        page.keyboard.type(line)
        page.keyboard.press("Enter")

    type_line("(rank 1)", "p x")
    page.get_by_text("tensor([1.])", exact=True).first.wait_for()
    type_line("(rank 1)", "open('go', 'w').close()")
    prompt = "(rank 1)"
    while prompt == "(rank 1)":  # the other one is on its way
        type_line(prompt, "rank 2")
        page.wait_for_function(READY, arg="(rank")
        prompt = page.locator(".jp-Stdin").last.inner_text().strip()
    type_line("(rank 2)", "x = x + 10")
    page.screenshot(path=tmp_path / "stopped.png")
    type_line("(rank 2)", "c")
    type_line("(rank 1)", "c")
    page.get_by_text("the sum is 13").first.wait_for()
    type_line("(rank", "q")
    page.get_by_text("Interrupted: Ranks 0-2 had not finished.").first.wait_for()
    page.wait_for_function(f"() => ({STATE})()?.kernel === 'idle'")
    page.screenshot(path=tmp_path / "left.png")
    assert page.complaints == []
    assert lab.stop() == []
