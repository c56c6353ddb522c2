"""Output of ranks as items, text and HTML, from a stand-in for ipyparallel's AsyncResult."""

from types import SimpleNamespace

from distlab.client import display
from distlab.client.display import Item


def result(stdout=(), stderr=None, values=None, displays=None):
    n = len(stdout)
    stderr, values, displays = stderr or [""] * n, values or [None] * n, displays or [[]] * n
    return SimpleNamespace(
        _metadata=[
            {
                "stdout": stdout[i],
                "stderr": stderr[i],
                "execute_result": None if values[i] is None else {"data": {"text/plain": values[i]}},
                "outputs": displays[i],
            }
            for i in range(n)
        ]
    )


def test_items_are_sorted_by_kind_then_rank_and_folded():
    """stdout first, then stderr, then values; equal ones of several ranks are one item."""
    items = display.collect(result(["a\n", "b\n", "a\n"], ["", "e\n", "e\n"], ["1", None, "1"]), [0, 1, 2])
    assert [(i.kind, i.ranks, i.text) for i in items] == [
        ("stdout", (0, 2), "a\n"),
        ("stdout", (1,), "b\n"),
        ("stderr", (1, 2), "e\n"),
        ("result", (0, 2), "1"),
    ]


def test_a_rank_that_displays_the_same_twice_is_not_folded_with_itself():
    """Two equal displays of one rank stay two; across ranks they fold pairwise."""
    twice = [{"data": {"text/plain": "x"}}, {"data": {"text/plain": "x"}}]
    items = display.collect(result(["", ""], displays=[twice, twice]), [0, 1])
    assert [i.ranks for i in items] == [(0, 1), (0, 1)]


def test_group_by_order_puts_nth_displays_side_by_side():
    """With groupby order the first displays of all ranks come before the second ones."""
    displays = [[{"data": {"text/plain": f"{r}{k}"}} for k in range(2)] for r in range(2)]
    by_type = display.collect(result(["", ""], displays=displays), [0, 1])
    by_order = display.collect(result(["", ""], displays=displays), [0, 1], groupby="order")
    assert [i.text for i in by_type] == ["00", "01", "10", "11"]
    assert [i.text for i in by_order] == ["00", "10", "01", "11"]


def test_text_is_aligned_and_html_escaped_and_free_of_terminal_colours():
    """Labels are padded to one width and further lines indented; text of a rank cannot break the page."""
    items = [Item("stdout", (0,), "a\nb\n"), Item("stderr", (0, 1), "c")]
    assert display.as_text(items) == "rank 0:           a\n                  b\nranks 0-1 stderr: c"
    html = display.as_html([Item("stdout", (0,), "\x1b[31m<script>\x1b[0m")])
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in html


def test_long_output_is_cut_in_the_middle():
    """Beyond the limit the middle goes, and its length is told."""
    items = display.collect(result(["x" * (display.LONGEST_OUTPUT + 5)]), [0])
    assert "\n... 5 characters more ...\n" in items[0].text
    assert len(items[0].text) < display.LONGEST_OUTPUT + 100


def test_the_cluster_as_text_and_html():
    """One line a rank; the memory of a dead one is not known."""
    rows = [
        {"rank": 0, "pid": 11, "megabytes": 188.4, "state": "idle"},
        {"rank": 1, "pid": 12, "megabytes": None, "state": "was killed by SIGKILL"},
    ]
    assert display.cluster_text("Cluster(2): x", rows) == (
        "Cluster(2): x\n"
        "  rank 0   idle                    188 MB  pid 11\n"
        "  rank 1   was killed by SIGKILL        -  pid 12"
    )
    html = display.cluster_html("Cluster(2): <x>", rows)
    assert "&lt;x&gt;" in html
    assert html.count("<tr>") == 3
