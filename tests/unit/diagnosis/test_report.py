"""What a learner reads of ranks that did not come back: tables and marked sources."""

from dataclasses import replace

import pytest

from distlab.diagnosis import marks, meanwhile, report, stuck
from distlab.diagnosis.needs import Need
from distlab.errors import RankError
from distlab.wire.messages import (
    COMMUNICATING,
    COMPUTING,
    DDP_FORWARD,
    IDLE,
    WAITING,
    CallRecord,
    Failure,
    RankStatus,
)
from distlab.wire.source import Line
from tests.unit.paper import Paper


def at_lines(steps, *lines):
    """The statuses of ranks on paper, rank 0 in the first of the lines and so on."""
    paper = Paper(steps)
    for rank, line in enumerate(lines):
        paper.at(rank, *(line if isinstance(line, tuple) else (line,)))
    return paper.states()


# --- calls and tables ---


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("recv any tag=3", "recv(src=any, tag=3)"),
        ("send 2 group=b:0,2", "send(dst=2, group of ranks 0 and 2)"),
        ("all_reduce reduce_op=SUM", "all_reduce()"),
        ("reduce reduce_op=MAX root=0", "reduce(dst=0, op=MAX)"),
    ],
)
def test_a_call_as_the_learner_would_write_it(step, words):
    """Only what matters is written: no tag 0, no SUM, not the world."""
    assert report.call_words(Paper(f"3 ranks; 0 {step}").states()[0].call) == words


WAITS = Line(9, "dist.recv(t, src=1)")


def test_a_table_of_what_ranks_do():
    """Equal ranks are one row; finished ranks have no line; empty columns are left out."""
    lines = [(Line(8, "main()"), WAITS), WAITS, Line(12, "step()", "train"), Line(1, "")]
    assert report.table(at_lines("5 ranks; 0-1 recv 4; 2 computes", *lines)).splitlines() == [
        "  ranks 0-1  recv(src=4)  float32[1]  line 9            dist.recv(t, src=1)",
        "  rank 2     computing                line 12 in train  step()",
        "  ranks 3-4  finished",
    ]
    assert report.table(at_lines("2 ranks; 0 is_silent; 1 has_not_begun")).splitlines() == [
        "  rank 0  does not answer: it is stopped, or compiled code holds Python's lock",
        "  rank 1  has not begun, or its reply is pending",
    ]


# --- what a person reads meanwhile, and at the end ---


def test_a_brief_of_what_ranks_do():
    """One line while a cell runs, of at most four kinds of rows."""
    reduces = Line(6, "dist.all_reduce(t)")
    step = Line(4, "step()", file="/home/me/train.py")
    states = at_lines(
        "6 ranks; 0-1 all_reduce; 2 computes; 4 computes; 5 is_silent", reduces, reduces, step
    )
    assert report.brief(states) == (
        "ranks 0-1: all_reduce() (line 6), rank 2: computing (train.py:4), "
        "rank 3: finished, rank 4: computing"
    )


# --- what ranks did when another one failed ---


def test_what_ranks_did_when_another_one_died():
    """As they were seen then; finished ones have nothing."""
    reduces = Line(6, "dist.all_reduce(t)")
    sleeps = Line(4, "time.sleep(5)")
    seen = at_lines("6 ranks; 0 all_reduce; 1-2 computes; 3 is_silent", reduces, sleeps, reduces)
    call = seen[0].call
    closed = {"consequence": True, "call": call, "lines": (reduces,)}
    raised = [Failure(rank, "RuntimeError", "Connection closed", **closed) for rank in (1, 2, 3)]
    raised.append(Failure(4, "ValueError", "no"))
    states = meanwhile.at_that_time([0, 1, 2, 3, 4, 5, 6], seen, raised)
    assert states == {
        0: seen[0],
        1: seen[1],  # it slept, and has called since
        2: RankStatus(2, COMMUNICATING, call, (reduces,)),  # it was raising
        3: RankStatus(3, COMMUNICATING, call, (reduces,)),
        5: RankStatus(5, IDLE),
        6: RankStatus(6, IDLE),
    }
    in_cpp = RankStatus(1, COMMUNICATING, None, (Line(3, "loss.backward()"),))
    assert (
        report.table({1: in_cpp}) == "  rank 1  waiting in communication  line 3  loss.backward()"
    )


def test_passes_of_ddp_are_counted():
    """Fewer of them explain a wait; as many, or different numbers, do not."""

    def first(op, *passes):
        states = Paper(f"3 ranks; 0-1 {op}").states()
        states = {rank: replace(state, passes=passes[rank]) for rank, state in states.items()}
        return stuck.why_stuck({rank: Need((2,)) for rank in (0, 1)}, states)

    fewer = (
        "Rank 2 has made 3 forward passes, and this one is number 4: "
        "with fewer batches on some ranks, use drop_last=True, or DDP's join()."
    )
    waits = "Ranks 0-1 wait in backward() for gradients of rank 2, which has finished"
    assert first("backward", 4, 4, 3) == f"{waits}. {fewer}"
    assert (
        first("backward", 4, 4, 4) == f"{waits}: does the loss of every rank use every parameter?"
    )
    assert first("backward", 4, 4, 1).startswith(
        f"{waits}. Rank 2 has made 1 forward pass, and this one is number 4:"
    )
    assert first("backward", 4, 4, 5) == f"{waits}."
    waits = (
        "Ranks 0-1 wait in the forward pass of DDP, which broadcasts buffers and the order of "
        "buckets, for rank 2"
    )
    assert first(DDP_FORWARD, 4, 4, 3) == f"{waits}, which has finished. {fewer}"
    inside = "to evaluate on some ranks only, call the model inside, with .module."
    assert first(DDP_FORWARD, 3, 3, 3) == f"{waits}, which has finished: {inside}"
    waits = (
        "Ranks 0-1 wait in DistributedDataParallel for "
        "rank 2, which has finished without calling it."
    )
    assert first("DistributedDataParallel", 3, 3, 3) == waits


def test_backward_passes_and_those_that_average_are_compared():
    """Where all have made as many forward passes; fewer of them explain more."""
    waits = "Rank 0 waits in backward() for gradients of rank 1, which has finished"
    states = Paper("2 ranks; 0 backward").states()
    states[0] = replace(states[0], passes=4, averaging_passes=2, backward_passes=4)

    def first(forward, averaging, backward):
        other = replace(
            states[1], passes=forward, averaging_passes=averaging, backward_passes=backward
        )
        words = stuck.why_stuck({0: Need((1,))}, {0: states[0], 1: other})
        assert words.startswith(waits)
        return words.removeprefix(waits)

    agree = "all ranks must skip the same ones, so let them agree with an all_reduce."
    assert (
        first(4, 2, 3) == f". Rank 1 has made 3 backward passes, and this one is number 4: {agree}"
    )
    outside = "Rank 1 has made 1 forward pass outside of no_sync(), and this one is number 2"
    assert first(4, 1, 4) == f". {outside}: every rank must enter no_sync() in the same steps."
    assert first(4, 1, 3).startswith(". Rank 1 has made 3 backward passes")
    assert first(3, 1, 3).startswith(
        ". Rank 1 has made 3 forward passes, and this one is number 4: with fewer batches"
    )
    assert first(4, 2, 4) == ": does the loss of every rank use every parameter?"


def test_finished_ranks_that_made_different_numbers_of_passes():
    """Each is named that made fewer than the rank that waits."""
    states = Paper("4 ranks; 0 backward").states()
    passes = {0: 6, 1: 5, 2: 4, 3: 6}
    states = {rank: replace(state, passes=passes[rank]) for rank, state in states.items()}
    words = stuck.why_stuck({0: Need((1, 2, 3))}, states)
    assert (
        "Rank 1 has made 5 forward passes, rank 2 has made 4 forward passes, "
        "and this one is number 6: with"
    ) in words


def test_two_threads_in_one_group_are_named():
    """Only if both are in a collective of it."""
    line = Line(3, "dist.barrier()")
    other = Line(9, "dist.all_reduce(t)")
    states = at_lines("2 ranks; 0 barrier; 1 barrier", line, line)
    call = states[0].call

    def first(beside):
        both = {
            rank: replace(state, call=replace(call, lines=(line,)), other_threads=beside)
            for rank, state in states.items()
        }
        return stuck.why_stuck({0: Need((1,))}, {0: both[0], 1: states[1]})

    thread = RankStatus(0, COMMUNICATING, replace(call, op="all_reduce", lines=(other,)), (other,))
    words = "Two threads of rank 0 use one group at once: give the second a group of its own."
    assert first((thread,)) == words
    assert first(()) != words
    assert first((replace(thread, lines=(Line(12, "work.wait()"),)),)) != words
    assert first((replace(thread, call=replace(thread.call, group="2")),)) != words
    rows = report.rows({0: replace(states[0], other_threads=(thread,))})
    assert [what for _, what, *_ in rows] == ["barrier()", "all_reduce() in another thread"]


def test_who_was_late():
    """Those that computed or slept when the first one failed."""
    states = at_lines("4 ranks; 0 computes; 1-2 all_reduce", Line(15, "time.sleep(5)"))
    states[0] = replace(states[0], sleeping=True)
    assert meanwhile.were_late(states) == "At that time rank 0 was sleeping, line 15."
    assert meanwhile.were_late({1: states[1], 3: states[3]}) == ""


def test_calls_that_are_known_to_differ():
    """Those of one collective are compared; a message or another collective is not."""
    clash = "The ranks' reduce calls do not match: rank 0 has op=MAX, rank 1 has op=SUM."
    reduces = "3 ranks; 0 reduce reduce_op=MAX; 1 reduce reduce_op=SUM"
    assert meanwhile.clash_of(at_lines(f"{reduces}; 2 computes")) == clash
    assert (
        meanwhile.clash_of(
            at_lines("3 ranks; 0 reduce reduce_op=MAX; 1 reduce reduce_op=MAX; 2 recv 1")
        )
        == ""
    )
    another = "2 ranks; 0 barrier; 0 reduce reduce_op=MAX; 1 reduce reduce_op=SUM"
    assert meanwhile.clash_of(at_lines(another)) == ""


# --- the source with marks ---


def test_the_cell_with_marks_at_its_ranks():
    """The lines where ranks are, with what they do there; a gap has dots, and no number."""
    states = at_lines(
        "3 ranks; 0 recv 1 tag=1; 1 recv 0; 2 computes", *[Line(2, "run()")] * 2, Line(23, "last()")
    )
    marked = marks.marked_source(states, "%%px\nrun()\n" + "pass\n" * 20 + "last()\n")
    assert marks.source_text(marked).splitlines() == [
        "    1  %%px",
        ">   2  run()    rank 0: recv(src=1, tag=1) float32[1]; rank 1: recv(src=0) float32[1]",
        "    3  pass",
        "    4  pass",
        "       ...",
        "   21  pass",
        "   22  pass",
        ">  23  last()   rank 2: computing",
    ]


def test_many_calls_at_one_line_have_only_their_names():
    """A ring on one line: a source for each rank would be wider than the page."""
    ring = at_lines("3 ranks; 0 recv 2; 1 recv 0; 2 recv 1", *[Line(2, "run()")] * 3)
    marked = marks.marked_source(ring, "%%px\nrun()\n")
    assert marks.source_text(marked).splitlines()[1] == ">   2  run()   ranks 0-2: recv float32[1]"


def test_a_function_of_a_file_is_marked_there(tmp_path):
    """A module's source comes from its file; dots part it from the cell."""
    file = tmp_path / "exchange.py"
    file.write_text("\n\n\ndef swap(t):\n    dist.recv(t, src=0)\n")
    swap = Line(5, "dist.recv(t, src=0)", "swap", str(file))
    states = {
        0: RankStatus(0, COMPUTING, lines=(Line(2, "wait()"),)),
        1: RankStatus(1, COMPUTING, lines=(Line(3, "swap(t)"), swap)),
    }
    assert marks.source_text(marks.marked_source(states, "%%px\nwait()\nswap(t)")).splitlines() == [
        "    1  %%px",
        ">   2  wait()                    rank 0: computing",
        "    3  swap(t)",
        "       ...",
        "    4  def swap(t):",
        ">   5      dist.recv(t, src=0)   rank 1: computing",
    ]


def test_ranks_without_a_line_are_not_in_the_source():
    """Finished and silent ranks are nowhere, nor is a function that ranks do not have."""
    gone = RankStatus(0, COMPUTING, lines=(Line(3, "f()", file="/nowhere/gone.py"),))
    for states in (Paper("2 ranks; 0 is_silent").states(), {0: gone}):
        assert marks.marked_source(states, "%%px\nf()\n") == []


@pytest.mark.parametrize(("other", "lines"), [("finishes", 1), ("is_silent", 0), ("computes", 0)])
def test_an_operation_is_left_only_where_every_rank_answers(other, lines):
    """A rank that does not answer may have begun it."""
    states = Paper(f"2 ranks; 0 all_reduce async; 1 {other}").states()
    states[0] = replace(states[0], abandoned=states[0].history)
    assert len(report.unmatched_operations(states)) == lines


def test_a_notebook_shows_an_error_in_eighty_columns():
    """It breaks between words and loses none; a row breaks before its last column."""
    words = (
        "rank 1 raised ValueError: no row:  " + "the sizes do not match " * 6 + "x" * 90 + "\n\n"
    )
    error = RankError(
        words + "  ranks 1-2   line 5 in forward   dist.all_reduce(gradients, op=dist.ReduceOp.MAX)"
    )
    shown = error._render_traceback_()
    assert [line for line in shown if len(line) > 80] == ["x" * 90]
    assert " ".join(shown).split() == f"RankError: {error}".split()
    assert shown[0].startswith("RankError: rank 1 raised ValueError: no row:  the sizes")
    assert shown[-2:] == [
        "  ranks 1-2   line 5 in forward",
        "          dist.all_reduce(gradients, op=dist.ReduceOp.MAX)",
    ]


@pytest.mark.parametrize(
    ("function", "what"),
    [("", "waits for rank 1"), ("through a file", "waits through a file for rank 1")],
)
def test_a_wait_of_the_learners_own_needs_no_words(function, what):
    """It is named alike in a table, where the other rank has finished, and in a circle."""
    wait = CallRecord("waiting", WAITING, (1,), function=function)
    states = {
        0: RankStatus(0, COMMUNICATING, wait),
        1: RankStatus(1, COMMUNICATING, replace(wait, members=(0,))),
    }
    assert report.call_words(wait) == what
    finished = stuck.why_stuck({0: Need((1,))}, {**states, 1: RankStatus(1, IDLE)})
    assert finished == f"Rank 0 {what}, which has finished."
    words = stuck.why_stuck({0: Need((1,)), 1: Need((0,))}, states)
    assert f": rank 0 {what.removeprefix('waits ')}, rank 1 " in words
