"""Marks before lines: which rank has written them, in a terminal and outside of one."""

import pytest

from distlab.scripts.marks import Marks


@pytest.fixture(autouse=True)
def _no_colours(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")


def shown(marks, *texts):
    return b"".join(marks.marked(rank, text) for rank, text in texts)


def test_outside_of_a_terminal_nothing_is_added():
    texts = [(0, b"a\n"), (1, b"b\n"), (0, b"c"), (1, b"d\x00\xff\r\n")]
    assert shown(Marks(None, in_terminal=False), *texts) == b"a\nb\ncd\x00\xff\r\n"


def test_in_a_terminal_lines_are_marked_once_a_second_rank_writes():
    texts = [(0, b"a\nb\n"), (1, b"c\n"), (0, b"d\ne\n")]
    assert shown(Marks(None, in_terminal=True), *texts) == b"a\nb\n[1] c\n[0] d\n[0] e\n"


@pytest.mark.parametrize("in_terminal", [False, True])
def test_a_person_may_decide(in_terminal):
    texts = [(0, b"a\n"), (1, b"b\n")]
    assert shown(Marks(True, in_terminal), *texts) == b"[0] a\n[1] b\n"
    assert shown(Marks(False, in_terminal), *texts) == b"a\nb\n"


def test_an_unfinished_line_is_continued_by_its_rank_only():
    texts = [(0, b"name? "), (0, b"Ada\n"), (0, b"x"), (1, b"y\n")]
    assert shown(Marks(True, in_terminal=True), *texts) == b"[0] name? Ada\n[0] x\n[1] y\n"


def test_a_progress_bar_stays_on_its_line_and_leaves_nothing_behind():
    marks = Marks(True, in_terminal=True)
    assert marks.marked(0, b"\r 10%|#  \r") == b"\r[0]  10%|#  \r"
    assert marks.marked(0, b" 99%|###\r") == b"[0]  99%|###\r"
    assert marks.marked(1, b"done\n") == b"[1] \x1b[Kdone\n"


def test_colours_tell_ranks_apart_in_a_terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    words = shown(Marks(True, in_terminal=True), (0, b"a\n"), (1, b"b\n"))
    assert words == b"\x1b[36m[0]\x1b[0m a\n\x1b[33m[1]\x1b[0m b\n"
