"""Stacks as other tools write them: who is where, and who is not where the others are."""

import re
from argparse import ArgumentTypeError

import pytest

from distlab.errors import DataError, DistlabError
from distlab.scripts.explaining import stacks_of_processes, stacks_report
from distlab.scripts.explaining.command import explain
from distlab.scripts.explaining.files import DumpFile
from distlab.scripts.explaining.stacks import read_stacks
from distlab.scripts.explaining.stacks_where import is_agent, status_of
from distlab.wire import messages
from tests.tool import ROOT
from tests.unit.scripts import recorded_stacks as recorded


def only(text):
    """The status of the one process in a text."""
    (stack,) = read_stacks(text)
    return status_of(0, stack)


def said_of(*texts):
    """What is said of ranks with these stacks, without the remarks that are always there."""
    files = {}
    for rank, text in enumerate(texts):
        files[DumpFile(f"stack{rank}.txt")] = read_stacks(text)
    words = stacks_report.of_files(files)
    return re.split("\n\n(?:Stacks show one moment|Who is)", words)[0]


# --- what is read ---


def test_a_stack_of_py_spy():
    """The call is the program's, not the wrapper around it; the line is the program's innermost."""
    status = only(recorded.ALL_REDUCE)
    assert status.doing == messages.COMMUNICATING
    assert status.call.op == "all_reduce"
    assert [line.position for line in status.lines] == ["train.py:27", "train.py:24", "train.py:7"]
    assert status.lines[-1].function == "validate"


def test_arguments_say_the_peer_of_a_message():
    """Only py-spy with --locals shows them."""
    call = only(recorded.RECV_WITH_LOCALS).call
    assert (call.op, call.peer, call.tag, call.is_send) == ("recv", 1, 3, False)
    without = recorded.RECV_WITH_LOCALS.replace("src: 1", "data: 1")
    assert only(without).call.kind == messages.OTHER


@pytest.mark.parametrize(
    ("text", "op"),
    [
        (recorded.FULL_TENSOR, "full_tensor"),
        (recorded.ALL_GATHER_OBJECT, "all_gather_object"),
        (recorded.WITH_THREADS, "DistributedDataParallel"),
    ],
)
def test_the_call_has_the_name_that_the_program_uses(text, op):
    """What it calls in turn is not what a person has written."""
    assert only(text).call.op == op


def test_a_rank_outside_of_calls():
    """py-spy says whether it computes; faulthandler does not, and then nothing is claimed."""
    assert only(recorded.COMPUTING).doing == messages.COMPUTING
    assert only(recorded.COMPUTING.replace("active+gil", "idle")).doing == messages.OUTSIDE
    importing = only(recorded.IMPORTING_IN_SAVE)
    assert (importing.doing, importing.call) == (messages.OUTSIDE, None)


@pytest.mark.parametrize("page", [recorded.PAGE, recorded.DUMPED_PAGE])
def test_pages_of_the_debug_server(page):
    """The page in a browser, and the file that it writes, say the ranks."""
    stacks = read_stacks(page)
    assert [stack.rank for stack in stacks] == [0, 1][: len(stacks)]
    assert status_of(0, stacks[0]).call.op == "all_reduce"


def test_the_last_of_several_dumps_counts():
    """A signal that was sent twice has written into the same file twice."""
    text = recorded.IMPORTING_IN_SAVE + "\n" + recorded.ALL_GATHER_OBJECT
    assert only(text).call.op == "all_gather_object"
    assert only(recorded.WITH_THREADS * 2).call.op == "DistributedDataParallel"


def test_a_terminal_of_torchrun():
    """Lines of two ranks are mixed, each behind the name of its rank."""
    lines = []
    first = recorded.ALL_GATHER_OBJECT.splitlines()
    second = recorded.IMPORTING_IN_SAVE.splitlines()
    for one, other in zip(first, second, strict=False):
        lines += [f"[rank0]: {one}", "step 7", f"[rank1]: {other}"]
    stacks = read_stacks("\n".join(lines))
    calls = [(stack.rank, status_of(0, stack).call) for stack in stacks]
    assert [(rank, call and call.op) for rank, call in calls] == [
        (0, "all_gather_object"),
        (1, None),
    ]


def test_other_texts_have_no_stacks(tmp_path):
    """A traceback is in another order, and not of a process that still runs."""
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: 3'
    assert not read_stacks(traceback)
    assert not read_stacks("loss 0.3\n")
    stack = tmp_path / "stack0.txt"
    stack.write_text(recorded.BARRIER)
    log = tmp_path / "log1.txt"
    log.write_text("loss 0.3\n")
    assert stacks_report.with_stacks([DumpFile(str(log))]) == {}
    with pytest.raises(DataError, match=r"log1\.txt must hold stacks as `py-spy dump`"):
        stacks_report.with_stacks([DumpFile(str(log)), DumpFile(str(stack))])
    in_folder = [DumpFile(str(log), is_named=False), DumpFile(str(stack), is_named=False)]
    assert list(stacks_report.with_stacks(in_folder)) == in_folder[1:]


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("b/stack1.txt", "b/stack0.txt"), "ranks 0-1"),
        (("job7_rank3.txt", "job7_rank12.txt"), "ranks 3 and 12"),
        (("x7.txt", "y7.txt"), "ranks 0-1"),
    ],
)
def test_the_rank_is_in_the_name_or_in_the_order(names, ranks):
    """Two files that would be of the same rank are numbered in order."""
    stacks = read_stacks(recorded.BARRIER)
    said = stacks_report.of_files({DumpFile(name): stacks for name in names})
    assert f"  {ranks}  barrier()" in said


def test_the_rank_that_a_person_gives_counts():
    """As RANK=FILE on the command line."""
    stacks = read_stacks(recorded.BARRIER)
    said = stacks_report.of_files({DumpFile("stack0.txt", rank=5): stacks})
    assert said.startswith("Rank 5 is in barrier(). There is")


# --- what is said ---


def test_a_hung_job_in_words():
    """Two ranks wait in one call, one in another, and one does something else."""
    assert (
        said_of(recorded.BARRIER, recorded.ALL_REDUCE, recorded.COMPUTING, recorded.ALL_REDUCE)
        == """\
Rank 0 is in barrier(). Ranks 1 and 3 are in all_reduce(). \
Rank 2 is not in any of these calls: it is at train.py:20 in train.

  rank 0         barrier()     train.py:12 in save
  ranks 1 and 3  all_reduce()  train.py:7 in validate
  rank 2         computing     train.py:20 in train"""
    )


def test_the_page_shows_what_is_said(tmp_path, capsys):
    """docs/explain.md has the whole report of these four stacks."""
    stacks = (recorded.BARRIER, recorded.ALL_REDUCE, recorded.COMPUTING, recorded.ALL_REDUCE)
    for rank, text in enumerate(stacks):
        (tmp_path / f"stack{rank}.txt").write_text(text)
    assert explain([str(tmp_path)]) == 0
    page = (ROOT / "docs/explain.md").read_text()
    (shown,) = re.findall(r"stack3\.txt\n(.*?)```", page, re.DOTALL)
    assert capsys.readouterr().out == shown


def test_one_rank_is_elsewhere():
    """The sentence says who is not in the call, and where that rank is instead."""
    said = said_of(recorded.ALL_REDUCE, recorded.COMPUTING)
    assert said.startswith(
        "Rank 0 is in all_reduce(). Rank 1 is not in it: it is at train.py:20 in train.\n"
    )


def test_a_wait_in_cpp_leaves_no_frame():
    """So a rank outside of calls may wait all the same, unless it is known to compute."""
    idle = recorded.COMPUTING.replace("active+gil", "idle")
    for text, is_said in ((idle, True), (recorded.COMPUTING, False)):
        files = {DumpFile("stack0.txt"): read_stacks(recorded.BARRIER)}
        files[DumpFile("stack1.txt")] = read_stacks(text)
        assert ("as in work.wait()" in stacks_report.of_files(files)) == is_said


def test_all_in_the_same_call():
    """Then the stacks do not say why; variables that py-spy has shown may."""
    first = recorded.RECV_WITH_LOCALS
    said = said_of(first, first.replace("step: 41", "step: 42"))
    assert said.startswith("Both ranks are in recv(src=1, tag=3), at the same line. So one may ")
    assert said.endswith("These variables differ: step is 41 on rank 0, 42 on rank 1.")
    elsewhere = recorded.ALL_REDUCE.replace("train.py:7", "train.py:9")
    assert said_of(recorded.ALL_REDUCE, elsewhere).startswith(
        "Both ranks are in all_reduce(), but at different lines: rank 0 at train.py:7 in validate, "
        "rank 1 at train.py:9 in validate."
    )


def test_two_ranks_that_both_receive():
    """Arguments show that each waits for the other."""
    mirrored = recorded.RECV_WITH_LOCALS.replace("src: 1", "src: 0")
    assert "Each of ranks 0-1 waits to receive from the other." in said_of(
        recorded.RECV_WITH_LOCALS, mirrored
    )


def test_a_rank_without_a_stack():
    """Its number is missing among the others."""
    stacks = read_stacks(recorded.BARRIER)
    files = {DumpFile("stack0.txt"): stacks, DumpFile("stack2.txt"): stacks}
    assert "There is no stack of rank 1." in stacks_report.of_files(files)


def test_torchrun_itself_is_no_rank():
    """Its stack is left out, and alone it explains nothing."""
    (agent,) = read_stacks(recorded.AGENT)
    assert is_agent(agent)
    with pytest.raises(DataError, match="is not a rank itself"):
        stacks_report.of_files({DumpFile("821.txt"): [agent]})


# --- processes that run ---


def test_without_py_spy(monkeypatch):
    """The error says what to install, and the other way."""
    monkeypatch.setattr(stacks_of_processes.shutil, "which", lambda name: None)
    with pytest.raises(DistlabError, match=r"(?s)pip install py-spy\..*faulthandler\.register"):
        stacks_of_processes.of_processes([1])


def test_numbers_of_processes():
    """With commas, or with spaces as pgrep writes them between quotes."""
    assert stacks_of_processes.pids_given("123,124") == [123, 124]
    assert stacks_of_processes.pids_given("123 124") == [123, 124]
    with pytest.raises(ArgumentTypeError, match="must be numbers of processes, got 'train'"):
        stacks_of_processes.pids_given("train")
