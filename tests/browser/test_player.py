"""The player of an algorithm's steps in a real JupyterLab: where it is trusted, and where scripts are not run."""

from contextlib import contextmanager

from nbformat.v4 import new_code_cell, new_output
from playwright.sync_api import sync_playwright

from distlab import plotting
from distlab.simulated.schedules import Message

from .conftest import BROWSER_OPTIONS
from .test_lab import foreign, open_notebook, run_all

SOURCE = """from distlab import plotting
from distlab.simulated.schedules import Message
one, both = {0}, {0, 1}
states = [[[one], [{1}]], [[one], [both]], [[both], [both]]]
messages = [[Message(0, 1, range(1), "reduce")], [Message(1, 0, range(1), "copy")]]
plotting.play(states, messages, "two ranks")"""
STATES = [[[{0}], [{1}]], [[{0}], [{0, 1}]], [[{0, 1}], [{0, 1}]]]
MESSAGES = [[Message(0, 1, range(1), "reduce")], [Message(1, 0, range(1), "copy")]]
HEADING = """() => document.querySelector("input[aria-label=step]").getAttribute("aria-valuetext")"""


def write_notebook(lab):
    """A notebook with the player's output in it, made elsewhere: JupyterLab does not trust it until it is run."""
    data = plotting.play(STATES, MESSAGES, "two ranks")._repr_mimebundle_()
    output = new_output("execute_result", data, execution_count=1)
    lab.write("player.ipynb", [new_code_cell(SOURCE, execution_count=1, outputs=[output])])
    return data


def test_the_player(page, lab):
    """Untrusted, all pictures are seen; run, the same output steps on, plays to the end, and asks no host."""
    data = write_notebook(lab)
    open_notebook(page, lab, "player.ipynb")
    row = page.locator(".jp-OutputArea-output img")
    row.wait_for()
    assert row.evaluate("image => image.complete && image.naturalWidth > 200")
    assert row.get_attribute("alt") == "two ranks, step by step: step 0, step 1, end"
    assert page.locator(".jp-OutputArea-output button").count() == 0

    (cell,) = run_all(page)
    page.locator(".jp-OutputArea-output button").first.wait_for()
    assert page.evaluate(HEADING) == "step 0"
    assert {kind: "".join(cell["outputs"][0]["data"][kind]).strip() for kind in data} == data

    on, play = page.get_by_title("one step on"), page.get_by_title("play or pause")
    assert on.evaluate("button => { button.click(); return document.querySelectorAll('.chip').length }") == 1
    page.wait_for_function(f"() => ({HEADING})() === 'step 1' && !document.querySelector('.chip')")
    page.get_by_title("one step back").click()
    assert page.evaluate(HEADING) == "step 0"
    page.get_by_label("step", exact=True).press("End")
    assert page.evaluate(HEADING) == "end"
    play.click()  # from the end, it begins anew
    assert page.evaluate(HEADING) == "step 0"
    page.wait_for_function(f"() => ({HEADING})() === 'end' && !document.querySelector('.chip')")
    page.wait_for_function("() => [...document.querySelectorAll('button')].some(made => made.textContent === 'play')")
    assert foreign(page.requested) == []
    assert page.complaints == []


@contextmanager
def plain_page(chromium, tmp_path, **options):
    """The player alone in a page, without JupyterLab."""
    path = tmp_path / "player.html"
    path.write_text(plotting.play(STATES, MESSAGES).html)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=BROWSER_OPTIONS)
        page = browser.new_page(**options)
        page.goto(path.as_uri())
        yield page
        browser.close()


def test_no_click_is_lost_while_something_moves(chromium, tmp_path):
    """Clicks that follow each other at once lead as far as slow ones: each ends what the one before it began."""
    click = "(titles) => titles.forEach(title => document.querySelector(`button[title='${title}']`).click())"
    on, back, play = "one step on", "one step back", "play or pause"
    with plain_page(chromium, tmp_path) as page:
        page.locator("button").first.wait_for()
        for titles, heading in [([on, on], "end"), ([back], "step 1"), ([back, on, on, back], "step 1")]:
            page.evaluate(click, titles)
            page.wait_for_function("() => !document.querySelector('.chip')")
            assert page.evaluate(HEADING) == heading, titles
        page.evaluate(click, [back, on, play])  # it plays from where the step leads
        page.wait_for_function(f"() => ({HEADING})() === 'end'")
