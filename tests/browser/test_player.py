"""The player of an algorithm's steps in JupyterLab, trusted and without scripts."""

from nbformat.v4 import new_code_cell, new_output

from distlab import plotting
from tests.unit.plotting.gallery import played

from .test_lab import foreign, open_notebook, run_all

SOURCE = """from distlab import plotting
from distlab_course import algorithms
plan = algorithms.schedule("naive", 2)
plotting.play(algorithms.holdings(plan), plan.steps, "two ranks")"""
CLICK = (
    "titles => titles.forEach(title => document.querySelector(`button[title='${title}']`).click())"
)
ON, BACK, PLAY = "one step on", "one step back", "play or pause"
HEADING = (
    """() => document.querySelector("input[aria-label=step]").getAttribute("aria-valuetext")"""
)


def use_the_keyboard(page):
    """Tab leads from the buttons to the slider, whose keys do not change the cell."""
    page.locator("button[title='one step on']").focus()
    page.keyboard.press("Tab")
    for key, heading in (
        ("Home", "step 0"),
        ("ArrowRight", "step 1"),
        ("ArrowRight", "end"),
        ("ArrowLeft", "step 1"),
    ):
        page.keyboard.press(key)
        assert page.evaluate(HEADING) == heading, key
        assert page.evaluate("document.activeElement.ariaLabel") == "step", key
    page.keyboard.press("End")
    assert page.evaluate(HEADING) == "end"


def test_the_player(page, lab):
    """Untrusted, all pictures are seen; run, the player plays to the end and asks no host.

    No click is lost while something moves: each ends what the one before it began.
    """
    data = plotting.play(*played("naive", 2), "two ranks")._repr_mimebundle_()
    # made elsewhere: not trusted until it is run
    output = new_output("execute_result", data, execution_count=1)
    lab.write("player.ipynb", [new_code_cell(SOURCE, execution_count=1, outputs=[output])])
    open_notebook(page, lab, "player.ipynb")
    row = page.locator(".jp-OutputArea-output img")
    row.wait_for()
    assert row.evaluate("image => image.complete && image.naturalWidth > 200")
    steps = "step 0, 1 message; step 1, 1 message; end"
    assert row.get_attribute("alt") == f"two ranks, step by step: {steps}"
    assert page.locator(".jp-OutputArea-output button").count() == 0

    (cell,) = run_all(page)
    page.locator(".jp-OutputArea-output button").first.wait_for()
    assert page.evaluate(HEADING) == "step 0"
    assert page.locator("svg[role=img] > title").first.text_content() == "two ranks: step 0"
    assert {kind: "".join(cell["outputs"][0]["data"][kind]).strip() for kind in data} == data

    for titles, heading in [
        ([ON], "step 1"),
        ([BACK], "step 0"),
        ([ON, ON], "end"),
        ([BACK, ON, ON, BACK], "step 1"),
    ]:
        page.evaluate(CLICK, titles)
        page.wait_for_function("() => !document.querySelector('.chip')")
        assert page.evaluate(HEADING) == heading, titles
    use_the_keyboard(page)
    page.evaluate(CLICK, [PLAY])  # from the end, it begins anew
    assert page.evaluate(HEADING) == "step 0"
    page.wait_for_function(f"() => ({HEADING})() === 'end' && !document.querySelector('.chip')")
    page.wait_for_function(
        "() => [...document.querySelectorAll('button')].some(made => made.textContent === 'play')"
    )
    assert foreign(page.requested) == []
    assert page.complaints == []
