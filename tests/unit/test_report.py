"""What a learner reads of ranks that did not come back: headlines, tables and marked sources, compared in full."""

import pytest

from distlab import report
from distlab.deadlock import COMPUTING, State, proof
from distlab.errors import Line
from tests.unit.paper import Paper


def said(paper: Paper, targets=None) -> str:
    """The headline of a deadlock."""
    states = paper.states()
    return report.headline(proof(states), states, targets)


# --- headlines: finished ranks ---


def test_a_recv_without_a_send():
    """Who waits for whose message, and that it will not come."""
    paper = Paper(2)
    paper.recv(1, src=0)
    assert said(paper) == "Rank 1 waits for a message from rank 0, which has finished without sending it."


def test_a_send_without_a_recv():
    """Who sends to whom, and that nobody takes it."""
    paper = Paper(3)
    paper.send(0, dst=2)
    assert said(paper) == "Rank 0 sends a message to rank 2, which has finished without receiving it."


def test_several_ranks_that_wait_alike_are_told_once():
    """One sentence in the plural for the same wait."""
    paper = Paper(4)
    for rank in (0, 1, 3):
        paper.collective(rank, "barrier", tensors=[])
    assert said(paper) == "Ranks 0, 1 and 3 wait in barrier for rank 2, which has finished without calling it."
    paper = Paper(4)
    for rank in (1, 2):
        paper.send(rank, dst=0)
    assert said(paper) == "Ranks 1-2 send a message to rank 0, which has finished without receiving it."


def test_three_different_waits_are_told_and_no_more():
    """A headline stays short; the table has the rest."""
    paper = Paper(8)
    for rank in range(4):
        paper.recv(rank, src=rank + 4)
    sentence = "Rank {} waits for a message from rank {}, which has finished without sending it."
    assert said(paper) == " ".join(sentence.format(rank, rank + 4) for rank in range(3))


def test_any_source_names_all_that_have_finished():
    """Nobody is left who could send."""
    paper = Paper(3)
    paper.recv(0)
    assert said(paper) == "Rank 0 waits for a message from ranks 1-2, which have finished without sending it."


def test_a_wait_for_a_stuck_rank_is_not_in_the_headline():
    """The root of a chain is told, not each link."""
    paper = Paper(3)
    paper.recv(1, src=0)
    paper.recv(2, src=1)
    assert said(paper) == "Rank 1 waits for a message from rank 0, which has finished without sending it."


def test_a_tag_that_nobody_took_is_hinted_at():
    """A finished rank has a message for this one, with another tag."""
    paper = Paper(2)
    paper.send(0, dst=1, tag=1, wait=False)
    paper.recv(1, src=0, tag=2)
    assert said(paper) == (
        "Rank 1 waits for a message from rank 0, which has finished without sending it "
        "(it sent with tag 1, and tag 2 is waited for)."
    )
    paper = Paper(2)
    paper.recv(0, src=1, tag=1, wait=False)
    paper.send(1, dst=0, tag=2)
    assert said(paper) == (
        "Rank 1 sends a message to rank 0, which has finished without receiving it "
        "(it receives with tag 1, and this has tag 2)."
    )


@pytest.mark.parametrize("any_source", [False, True])
def test_a_tag_that_was_received_is_no_hint(any_source):
    """A message with another tag that came through earlier has nothing to do with it."""
    paper = Paper(2)
    paper.send(0, dst=1, tag=1)
    paper.recv(1, src=None if any_source else 0, tag=1)
    paper.goes_on(0, 1)
    paper.recv(1, src=0, tag=2)
    assert said(paper) == "Rank 1 waits for a message from rank 0, which has finished without sending it."


@pytest.mark.parametrize("other", [{"group": "1"}, {"to": 2}])
def test_messages_of_another_group_or_to_another_rank_are_no_hint(other):
    """Only a message that was meant for the waiting rank is worth a word."""
    paper = Paper(3)
    paper.group("1", [0, 1, 2])
    paper.send(0, dst=other.pop("to", 1), tag=1, wait=False, **other)
    paper.recv(1, src=0, tag=2)
    assert said(paper) == "Rank 1 waits for a message from rank 0, which has finished without sending it."


def test_a_collective_that_one_rank_does_not_call():
    """The collective, and who is missing."""
    paper = Paper(3)
    paper.collective(0)
    paper.collective(2)
    assert said(paper) == "Ranks 0 and 2 wait in all_reduce for rank 1, which has finished without calling it."


def test_a_loop_with_one_turn_too_many():
    """A collective that the finished rank has called before is missed once more."""
    paper = Paper(2)
    for rank in (0, 0, 1):
        paper.collective(rank)
    paper.goes_on(1)
    assert said(paper) == "Rank 0 waits in all_reduce for rank 1, which has finished without calling it once more."


def test_another_collective_or_group_before_is_not_once_more():
    """Only the same collective of the same group counts."""
    paper = Paper(2)
    group = paper.group("1", [0, 1])
    for rank in (0, 1):
        paper.collective(rank, "barrier", tensors=[])
        paper.collective(rank, group=group)
    paper.goes_on(1)
    paper.collective(0)
    assert said(paper) == "Rank 0 waits in all_reduce for rank 1, which has finished without calling it."


def test_new_group_on_some_ranks():
    """The rule of new_group is part of the sentence."""
    paper = Paper(4)
    paper.new_group(0)
    assert said(paper) == (
        "Rank 0 waits in new_group, which every rank must call, for ranks 1-3, which have finished without calling it."
    )


def test_backward_without_all_gradients():
    """The usual cause is asked for."""
    paper = Paper(2)
    paper.other(0)
    assert said(paper) == (
        "Rank 0 waits in backward() for gradients of rank 1, which has finished: "
        "does the loss of every rank use every parameter?"
    )


def test_a_model_that_one_rank_does_not_wrap():
    """DistributedDataParallel waits for every rank."""
    paper = Paper(2)
    paper.other(0, "DistributedDataParallel")
    words = "Rank 0 waits in DistributedDataParallel for rank 1, which has finished without calling it."
    assert said(paper) == words


def test_ranks_that_do_not_run_the_cell_are_told_as_that():
    """A cell on some ranks whose calls need all: the others have not finished, they were never asked."""
    paper = Paper(4)
    paper.collective(0)
    paper.collective(1)
    assert said(paper, [0, 1]) == "Ranks 0-1 wait in all_reduce for ranks 2-3, which do not run this cell."
    paper.recv(1, src=3)
    assert said(paper, [0, 1, 2]) == (
        "Rank 0 waits in all_reduce for ranks 2-3, which have finished without calling it. "
        "Rank 1 waits for a message from rank 3, which does not run this cell."
    )


# --- headlines: circles ---


def test_everybody_receives():
    """A circle of receivers."""
    paper = Paper(3)
    for rank in range(3):
        paper.recv(rank, src=(rank + 1) % 3)
    assert said(paper) == "3 of 3 ranks wait for each other; nobody will send."


def test_everybody_sends():
    """A circle of senders, and why a send waits."""
    paper = Paper(3)
    paper.send(0, dst=1)
    paper.send(1, dst=0)
    words = "2 of 3 ranks wait for each other; nobody will receive, and a send waits for its receiver."
    assert said(paper) == words


def test_different_groups():
    """The same collective in different groups."""
    paper = Paper(2)
    first, second = paper.group("1", [0, 1]), paper.group("2", [0, 1])
    paper.collective(0, group=first)
    paper.collective(1, "broadcast", group=second, root=0)
    words = "2 of 2 ranks wait for each other: they call all_reduce and broadcast in different groups."
    assert said(paper) == words


def test_a_mixed_circle_names_its_links():
    """At most four of them."""
    paper = Paper(5)
    for rank in range(4):
        paper.recv(rank, src=rank + 1)
    paper.collective(4, "barrier", tensors=[])
    assert said(paper) == (
        "5 of 5 ranks wait for each other: rank 0 in recv for rank 1, rank 1 in recv for rank 2, "
        "rank 2 in recv for rank 3, rank 3 in recv for rank 4, and so on."
    )


def test_a_clash_is_the_headline():
    """What cannot fit is told before who waits for whom; the same sentence once."""
    paper = Paper(3)
    paper.send(0, dst=1, tag=7)
    paper.recv(1, src=0, tag=9)
    assert said(paper) == "Rank 0 sends with tag 7, but rank 1 waits for tag 9."


def test_calls_that_differ_are_the_headline():
    """The sentence begins with a capital and ends there."""
    paper = Paper(2)
    paper.collective(0)
    paper.collective(1, "barrier", tensors=[])
    words = "The ranks do not call the same collective: rank 0 calls all_reduce, rank 1 calls barrier."
    assert said(paper) == words


# --- calls and tables ---


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.recv(0, src=1), "recv(src=1)"),
        (lambda p: p.recv(0, tag=3), "recv(src=any, tag=3)"),
        (lambda p: p.send(0, dst=2, tag=1), "send(dst=2, tag=1)"),
        (lambda p: p.send(0, dst=2, group="1"), "send(dst=2, group of ranks 0 and 2)"),
        (lambda p: p.collective(0, reduce_op="SUM"), "all_reduce()"),
        (lambda p: p.collective(0, "reduce", reduce_op="MAX", root=0), "reduce(dst=0, op=MAX)"),
        (lambda p: p.collective(0, "gather", root=2), "gather(dst=2)"),
        (lambda p: p.collective(0, "broadcast", root=2), "broadcast(src=2)"),
        (lambda p: p.collective(0, "scatter", root=1, group="1"), "scatter(src=1, group of ranks 0 and 2)"),
    ],
)
def test_a_call_as_the_learner_would_write_it(make, words):
    """Only what matters is written: no tag 0, no SUM, not the world."""
    paper = Paper(3)
    paper.group("1", [0, 2])
    assert report.call_words(make(paper)) == words


def test_a_table_of_all_that_ranks_do():
    """Ranks that do the same at the same line are one row; empty columns are left out."""
    paper = Paper(5)
    for rank in (0, 2):
        paper.recv(rank, src=1)
        paper.at(rank, Line(9, "main()"), Line(3, "dist.recv(t, src=1)"))
    paper.computes(3)
    paper.at(3, Line(12, "step()", "train"))
    assert report.table(paper.states()) == (
        "  ranks 0 and 2  recv(src=1)  float32[1]  line 3            dist.recv(t, src=1)\n"
        "  ranks 1 and 4  finished\n"
        "  rank 3         computes                 line 12 in train  step()"
    )


def test_a_table_of_ranks_that_do_not_say_where_they_are():
    """A rank that is silent, or has yet to begin, has a row too."""
    paper = Paper(3)
    paper.silent(0)
    paper.has_not_begun(1)
    assert report.table(paper.states()) == (
        "  rank 0  does not answer: it is stopped, or compiled code holds Python's lock\n"
        "  rank 1  has not begun, or its answer is on its way\n"
        "  rank 2  finished"
    )


def test_the_same_call_at_different_lines_is_two_rows():
    """Where a rank is matters as much as what it does."""
    paper = Paper(2)
    for rank in range(2):
        paper.collective(rank, "barrier", tensors=[])
        paper.at(rank, Line(rank + 1, "dist.barrier()"))
    assert report.table(paper.states()) == (
        "  rank 0  barrier()  line 1  dist.barrier()\n  rank 1  barrier()  line 2  dist.barrier()"
    )


@pytest.mark.parametrize(
    ("begun", "words"),
    [
        (("f.py", 7, "w = dist.irecv(t)", "", False), "irecv(src=1) of line 7"),
        (("f.py", 9, "w.wait()", "", False), "irecv(src=1)"),
    ],
    ids=["in another line", "in the same line"],
)
def test_an_asynchronous_call_says_where_it_was_begun(begun, words):
    """A rank that waits for a call of another line says which line that was."""
    paper = Paper(2)
    paper.wait(0, {**paper.recv(0, src=1, wait=False), "lines": [begun]})
    paper.at(0, Line(9, "w.wait()"))
    assert report.rows(paper.states())[0] == ([0], words, "float32[1]", Line(9, "w.wait()"))


# --- what a person reads meanwhile, and at the end ---


def test_a_brief_of_what_ranks_do():
    """One line while a cell runs, of at most four kinds of rows."""
    paper = Paper(6)
    paper.computes(2)
    paper.at(2, Line(4, "step()"))
    for rank in (0, 1):
        paper.collective(rank)
        paper.at(rank, Line(6, "dist.all_reduce(t)"))
    paper.computes(4)
    paper.silent(5)
    assert report.brief(paper.states()) == (
        "ranks 0-1: all_reduce() (line 6), rank 2: computes (line 4), rank 3: finished, rank 4: computes"
    )


@pytest.mark.parametrize(
    ("ranks", "timeout", "words"),
    [
        ([3], 0.5, "rank 3 did not come back within 0.5 s."),
        ([0, 1], 10.0, "ranks 0-1 did not come back within 10 s."),
        ([0, 1], None, "Ranks 0-1 had not ended."),
        ([], None, "No rank had not ended."),
    ],
)
def test_ranks_that_are_late(ranks, timeout, words):
    """By the clock, or because a person did not want to wait."""
    assert report.late(ranks, timeout) == words


KEPT = "Variables are kept and the process group is rebuilt: change the cell and run it again."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1.23, [], {}, 0, 4), f"Freed after 1.2 s. {KEPT}"),
        (
            (1.0, [], {}, 2, 4),
            f"Freed after 1.0 s. {KEPT} Groups made with dist.new_group, and device meshes, are gone: make them again.",
        ),
        ((9.0, [1, 2], {}, 0, 4), "Ranks 1-2 could not be freed: call cluster.restart()."),
        (
            (2.0, [], {1: "and its variables are lost: x"}, 0, 4),
            "Freed after 2.0 s. "
            "Rank 1 could not be freed: a new process took its place, and its variables are lost: x. "
            "The other ranks keep their variables, and the process group is rebuilt.",
        ),
        (
            (2.0, [], {0: "and its variables are lost: x"}, 0, 1),
            "Freed after 2.0 s. "
            "Rank 0 could not be freed: a new process took its place, and its variables are lost: x. "
            "The process group is rebuilt.",
        ),
    ],
    ids=["freed", "with groups", "not freed", "replaced", "all replaced"],
)
def test_what_was_done_about_them(arguments, words):
    """What is left of the ranks' variables and groups, and what to do now."""
    assert report.outcome(*arguments) == words


# --- the source with marks ---

CELL = "%%px\na = 1\nb = 2\nif rank:\n    dist.recv(t, src=0)\nc = 3\nd = 4\ne = 5\nf = 6\ndist.barrier()\n"


def at_two_lines():
    paper = Paper(3)
    for rank in (1, 2):
        paper.recv(rank, src=0)
        paper.at(rank, Line(5, "dist.recv(t, src=0)"))
    paper.collective(0, "barrier", tensors=[])
    paper.at(0, Line(10, "dist.barrier()"))
    return report.marked_source(paper.states(), CELL)


def test_the_cell_with_marks_at_its_ranks():
    """The lines where ranks are, two around each, and dots for what is left out."""
    assert report.source_text(at_two_lines()) == (
        "    3  b = 2\n"
        "    4  if rank:\n"
        ">   5      dist.recv(t, src=0)   ranks 1-2: recv(src=0) float32[1]\n"
        "    6  c = 3\n"
        "    7  d = 4\n"
        "    8  e = 5\n"
        "    9  f = 6\n"
        ">  10  dist.barrier()            rank 0: barrier()"
    )


def test_lines_far_from_any_rank_are_left_out():
    """Dots stand for a gap, without a number."""
    cell = "%%px\nfirst()\n" + "pass\n" * 20 + "last()\n"
    paper = Paper(2)
    for rank, line in enumerate((Line(2, "first()"), Line(23, "last()"))):
        paper.computes(rank)
        paper.at(rank, line)
    assert report.source_text(report.marked_source(paper.states(), cell)) == (
        "    1  %%px\n"
        ">   2  first()   rank 0: computes\n"
        "    3  pass\n"
        "    4  pass\n"
        "       ...\n"
        "   21  pass\n"
        "   22  pass\n"
        ">  23  last()    rank 1: computes"
    )


def test_blank_lines_are_shown_between_others_only():
    """A blank line at the edge of what is shown says nothing."""
    paper = Paper(1)
    paper.computes(0)
    paper.at(0, Line(4, "step()"))
    marked = report.marked_source(paper.states(), "%%px\n\n\nstep()\n\nlast()\n")
    assert [(line.number, line.text) for line in marked] == [(3, ""), (4, "step()"), (5, ""), (6, "last()")]


def test_two_things_at_one_line():
    """Ranks that do different things in the same line are both noted there."""
    paper = Paper(3)
    paper.recv(0, src=1, tag=1)
    paper.recv(1, src=0)
    for rank in (0, 1):
        paper.at(rank, Line(2, "run()"))
    assert report.source_text(report.marked_source(paper.states(), "%%px\nrun()")) == (
        "    1  %%px\n>   2  run()   rank 0: recv(src=1, tag=1) float32[1]; rank 1: recv(src=0) float32[1]"
    )


def test_a_function_of_an_earlier_cell_is_marked_where_this_cell_calls_it():
    """A line number of another cell means nothing here, even where this cell has so many lines."""
    paper = Paper(1)
    paper.recv(0, src=0)
    paper.at(0, Line(4, "exchange(t)"), Line(2, "dist.recv(t, src=0)", "exchange"))
    assert report.source_text(report.marked_source(paper.states(), "%%px\nx = 1\ny = 2\nexchange(t)")) == (
        "    2  x = 1\n    3  y = 2\n>   4  exchange(t)   rank 0: recv(src=0) float32[1]"
    )


@pytest.mark.parametrize("first", [1, 4])
def test_a_function_of_a_file_is_marked_there(tmp_path, first):
    """The source of a module comes from its file; dots part it from the cell, whatever its line numbers are."""
    file = tmp_path / "exchange.py"
    file.write_text("\n" * (first - 1) + "def swap(t):\n    dist.recv(t, src=0)\n")
    swap = Line(first + 1, "dist.recv(t, src=0)", "swap")
    states = {
        0: State(0, COMPUTING, lines=(Line(2, "wait()"),)),
        1: State(1, COMPUTING, lines=(Line(3, "swap(t)"), swap), file=str(file)),
    }
    assert report.source_text(report.marked_source(states, "%%px\nwait()\nswap(t)")) == (
        "    1  %%px\n"
        ">   2  wait()                    rank 0: computes\n"
        "    3  swap(t)\n"
        "       ...\n"
        f"    {first}  def swap(t):\n"
        f">   {first + 1}      dist.recv(t, src=0)   rank 1: computes"
    )


def test_ranks_without_a_line_are_not_in_the_source():
    """Finished and silent ranks are nowhere; without any rank there is nothing to show."""
    paper = Paper(2)
    paper.silent(0)
    assert report.marked_source(paper.states(), CELL) == []


def test_a_source_that_cannot_be_had_is_not_shown():
    """A function that was sent from a notebook has no cell on the ranks: no line is invented."""
    states = {0: State(0, COMPUTING, lines=(Line(3, "f()"),), file="/nowhere/gone.py")}
    assert report.marked_source(states, "") == []


def test_the_marked_source_as_html():
    """Source and notes are escaped; chips come before each note; a gap has no number."""
    paper = Paper(2)
    paper.computes(0)
    paper.at(0, Line(2, "a = b < c"))
    html = report.source_html(report.marked_source(paper.states(), "%%px\na = b < c"), lambda ranks: f"<b>{ranks}</b>")
    assert "a = b &lt; c" in html
    assert "<b>[0]</b>rank 0: computes" in html
    assert html.count("border-left:3px") == 1
    assert report.source_html([report.MarkedLine(0, "...", [])], str).count(">0<") == 0
