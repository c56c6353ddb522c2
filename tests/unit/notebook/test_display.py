"""What a person sees of ranks: paragraphs, outputs with their ranks, the live picture."""

import re

import pytest

from distlab.notebook import display, paragraphs
from distlab.notebook.display import Item
from distlab.notebook.live import Live, MemoryWatch
from distlab.plotting.style import contrast
from distlab.wire.messages import COMMUNICATING, COMPUTING, CallRecord, RankStatus
from distlab.wire.source import Line

REPORT = (
    "rank 1 raised ValueError: a <b>\n\n"
    "  ranks 1-2   line 5 in forward   dist.all_reduce(x)\n"
    "Variables are kept."
)


def words(html):
    return re.sub(r"<[^>]+>", "", html.replace("</div>", "\n")).replace("&nbsp;", "")


def test_a_report_breaks_between_words_and_keeps_them_all():
    """A row of its table is indented where it breaks; its code moves first."""
    shown = paragraphs.as_paragraphs(REPORT, "RankError")
    assert "<b>RankError</b>: rank 1 raised ValueError: a &lt;b&gt;" in shown
    assert "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere" in shown
    assert '<span style="display:inline-block;text-indent:0">dist.all_reduce(x)</span>' in shown
    assert (
        words(shown).replace("&lt;", "<").replace("&gt;", ">").split()
        == f"RankError: {REPORT}".split()
    )
    assert (
        '<div style="padding-left:6ch;text-indent:-6ch">  ranks 1-2   line 5 in forward   <span'
        in shown
    )
    assert paragraphs.as_paragraphs("only words").count("<div") == 2
    assert ">  one column</div>" in paragraphs.as_paragraphs("  one column")


def test_rows_of_a_verdict_are_indented_where_a_person_sees_them_break(monkeypatch):
    assert paragraphs.hanging(["rank 0   1", "rank 1   2"], 9) == "\nrank 0   1\nrank 1   2"
    monkeypatch.setattr(display, "somebody_watches", lambda: True)
    monkeypatch.setattr(paragraphs, "somebody_watches", lambda: True)
    assert (
        paragraphs.hanging(["rank 0   1"], 9)
        == '<div style="padding-left:9ch;text-indent:-9ch">rank 0   1</div>'
    )
    assert display.wrapped() == "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"


def one(rank, kind, text, turn, **data):
    return Item(kind, (rank,), text, data or None, turn)


def test_what_ranks_share_keeps_its_turn():
    """A table that is the same on all ranks comes after each rank's words."""
    own = [
        one(rank, "display", f"words {rank}", 0, **{"text/markdown": f"words {rank}"})
        for rank in range(3)
    ]
    shared = [
        one(rank, "display", "table", 1, **{"text/html": "<table></table>"}) for rank in range(3)
    ]
    written = [item for pair in zip(own, shared, strict=True) for item in pair]
    assert [(item.text, item.ranks) for item in display._fold(written)] == [
        ("words 0", (0,)),
        ("words 1", (1,)),
        ("words 2", (2,)),
        ("table", (0, 1, 2)),
    ]


def test_what_ranks_show_by_themselves_stays_together():
    written = [
        one(rank, "display", f"{rank}{turn}", turn) for rank in range(2) for turn in range(2)
    ]
    assert [item.text for item in display._fold(written)] == ["00", "01", "10", "11"]


@pytest.mark.parametrize(
    ("data", "has_place"),
    [
        (None, True),
        ({"text/html": ""}, True),
        ({"text/markdown": ""}, True),
        ({"image/png": ""}, False),
        ({"text/latex": ""}, False),
    ],
)
def test_an_output_without_a_place_for_the_ranks_gets_them_above(data, has_place):
    assert Item("display", (0,), "", data).has_place_for_label is has_place


def test_markdown_has_its_rank_in_front():
    bundle = display._rich_bundle(one(2, "display", "a title", 0, **{"text/markdown": "# a title"}))
    assert bundle == {"text/markdown": "rank 2:\n\n# a title", "text/plain": "rank 2: a title"}


def test_the_live_picture_can_be_read_and_heard():
    """It has a role and a title, and bars have an outline."""
    call = CallRecord(
        "recv", "message", members=(0, 1), peer=0, lines=(Line(4, "dist.recv(x, src=0)"),)
    )
    states = {0: RankStatus(0, COMPUTING), 1: RankStatus(1, COMMUNICATING, call, call.lines)}
    live = Live(lambda: {0: 60.0})
    live.look(0.0, states)
    live.look(3.0, states)
    picture = live.picture(3.0, states)
    assert picture.count('role="img"') == picture.count("<title>what each rank did") == 1
    assert "<b>rank 0</b> <span>computing · 3 s · 60 MB</span>" in picture
    assert "<b>rank 1</b> <span>recv(src=0), line 4 · 3 s</span>" in picture
    assert all('stroke="currentColor"' in bar for bar in re.findall("<rect[^>]*>", picture))
    assert len(re.findall("<rect", picture)) == 2
    for page, ink in (("#FFFFFF", "#212121"), ("#111111", "#DEDEDE")):
        mixed = "#" + "".join(
            f"{round(int(ink[i : i + 2], 16) * 0.65 + int(page[i : i + 2], 16) * 0.35):02X}"
            for i in (1, 3, 5)
        )
        assert contrast(mixed, page) >= 3


def test_memory_is_looked_at_every_two_seconds():
    """The picture is drawn four times a second. What a rank had stays until it answers again."""
    answers = [{0: 50.0, 1: 60.0}, {1: 70.0}, {}]
    watch = MemoryWatch(lambda: answers.pop(0))
    seen = [watch.look(now).copy() for now in (2.0, 2.25, 3.75, 4.0, 4.25, 6.5)]
    first = {0: 50.0, 1: 60.0}
    second = {0: 50.0, 1: 70.0}
    assert seen == [first, first, first, second, second, second]
    assert answers == []


def test_calls_that_read_alike_are_told_apart_by_what_the_rank_has_noted():
    """The time of a lane is that of its newest call."""
    call = CallRecord("recv", "message", peer=0, lines=(Line(4, "dist.recv(x, src=0)"),))
    live = Live(dict)
    for now, activity in ((0.0, 1), (2.0, 1), (3.0, 2), (4.0, 2)):
        live.look(now, {1: RankStatus(1, COMMUNICATING, call, call.lines, activity=activity)})
    assert live._words(1, 5.0, {}) == "recv(src=0), line 4 · 2 s"
