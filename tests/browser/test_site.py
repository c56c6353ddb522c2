"""make site: the pages in Chromium, on a telephone and on a desk, light and dark."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.tool import ROOT

PAGES = ("README", "notebooks/02_ranks_that_wait", "notebooks/05_ring_all_reduce")
PAGES += ("docs/reports/deadlock_error", "docs/silent_mistakes", "docs/api", "TEACHING")

pytestmark = pytest.mark.timeout(900)  # building takes 40 s of CPU


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where the site is."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".", folder]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

    return folder.as_uri()


@pytest.fixture(scope="module")
def browser(chromium):
    """One Chromium, whose start takes longer than a visit."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, address):
    """Open a page on a screen of some size and scheme; what fails to load is an error.

    Each page has a profile of its own, which no other page has written into.
    """

    def visit(path, width=1280, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 850}, color_scheme=scheme)
        page.set_default_timeout(60_000)
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("requestfailed", lambda one: page.complaints.append(one.url))
        page.goto(f"{address}/{path}")
        return page

    yield visit
    for context in browser.contexts:
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (820, "light"), (1280, "dark")])
def test_pages_fit_the_screen(visit, address, width, scheme):
    """No page is wider than the screen, and everything in it is there."""
    page = visit("README.html", width, scheme)
    for name in PAGES:
        page.goto(f"{address}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert (
            page.evaluate(
                "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
            )
            == []
        )
        unnamed = (
            "[...document.images].filter(i => !i.alt || /[0-9a-f]{64}/.test(i.alt)).map(i => i.alt)"
        )
        assert page.evaluate(unnamed) == [], name
        assert page.complaints == []


def test_a_lesson_on_the_site(visit):
    """A lesson is found, offers its file, and plays; outputs to predict are folded."""
    page = visit("index.html")
    page.wait_for_url("**/README.html")
    page.get_by_role("link", name="05 · Ring all-reduce").first.click()
    page.wait_for_url("**/05_ring_all_reduce.html")
    file = page.get_by_role("link", name="Download").first.evaluate(
        "link => decodeURI(link.pathname)"
    )
    assert Path(file).read_bytes() == (ROOT / "notebooks/05_ring_all_reduce.ipynb").read_bytes()
    player = page.locator("input[aria-label=step]").first
    before = player.get_attribute("aria-valuetext")
    page.locator("button[title='one step on']").first.click()
    page.wait_for_function(
        "was => document.querySelector('input[aria-label=step]').ariaValueText !== was", arg=before
    )
    folded = visit("notebooks/02_ranks_that_wait.html").locator("details.hide")
    assert folded.count() >= 10
    assert folded.first.get_attribute("open") is None


def test_search_finds_a_report(visit):
    page = visit("search.html?q=DeadlockError")
    page.get_by_role("link", name="DeadlockError: what it means").first.wait_for()


def test_search_shows_no_answers(visit):
    """A call that lessons and answers use is found in lessons only."""
    page = visit("search.html?q=tensor_split")
    page.locator("#search-results li").first.wait_for()
    page.get_by_text(re.compile("Search finished|found .* page")).first.wait_for()
    links = page.locator("#search-results li > a").evaluate_all(
        "all => all.map(one => one.getAttribute('href'))"
    )
    assert any("notebooks/05_ring_all_reduce" in link for link in links)
    assert [link for link in links if "solutions" in link] == []


def test_the_sidebar_has_reference_and_teaching_above_the_labs(visit):
    captions = visit("README.html").locator(".sidebar-tree .caption-text").all_text_contents()
    assert captions[:3] == ["distlab", "Reference", "For teachers and developers"]
    assert captions[-1] == "Answers"


def test_the_cheat_sheet_is_one_sheet_of_paper(visit):
    """Printed in A4."""
    printed = visit("notebooks/cheat_sheet.html").pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == 1
