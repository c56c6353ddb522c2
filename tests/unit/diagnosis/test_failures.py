"""From what ranks report to one paragraph, without any process; test_faults.py has whole ones."""

import linecache
from dataclasses import replace

import pytest

from distlab.diagnosis.advice import ADVICE, END_SOME_PROCESSES
from distlab.diagnosis.afterwards import words_of_freeing, words_of_late
from distlab.diagnosis.deaths import DIED, DeadRank, died_words, lines_of_dead, rank_died
from distlab.diagnosis.endings import CUT_OFF, UNKNOWN, WITH_ANOTHER, Ending, ending_of
from distlab.diagnosis.failures import handled_words, rank_error
from distlab.diagnosis.joining import not_built
from distlab.diagnosis.lines import where
from distlab.diagnosis.readable import made_readable, readable
from distlab.wire.faults import Fault
from distlab.wire.messages import Failure
from distlab.wire.source import Line

TIMED_OUT = "Timed out waiting 1500ms for recv operation to complete"


def lines_of(*failed):
    """The lines of the error for ranks that failed."""
    return str(rank_error(failed, [0, 1], False, "")).splitlines()


def test_a_recursion_is_shown_in_a_few_lines():
    calls = tuple(Line(number, f"f({number})") for number in range(200))
    lines = lines_of(Failure(0, "RecursionError", "maximum recursion depth exceeded", calls))
    assert lines[1] == "  rank 0   line 0   f(0)"
    assert lines[6:8] == ["           ... 190 more calls ...", "           line 195   f(195)"]
    assert len(lines) == 13  # rank 1 finished


def test_a_line_of_a_file_has_the_name_of_the_file():
    """Lines of cells, of the notebook, and what was typed have no file that a person knows."""
    files = "", "/tmp/ipykernel_7/12.py", "<stdin>", "/home/me/my code/train.py"
    calls = tuple(Line(place, "step()", "main", file) for place, file in enumerate(files))
    assert where([2], calls).splitlines() == [
        "  rank 2   line 0 in main   step()",
        "           line 1 in main   step()",
        "           line 2 in main   step()",
        "           train.py:3 in main   step()",
    ]


GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at /gloo/tcp/pair.cc:456] "
    "op.preamble.length <= op.nbytes. 24 vs 2. Received data size"
)
ALLOC = """terminate called after throwing an instance of 'std::runtime_error'
  what():  [/src/x.cpp:7] no more room
"""


NO_FAULT = Fault()
IN_PYTHON = Fault(in_python=True)
ABORTED = Fault(aborted=True)


@pytest.mark.parametrize(
    ("status", "log", "fault", "words"),
    [
        (3, GLOO, NO_FAULT, "ended with exit status 3"),
        (
            -9,
            GLOO,
            NO_FAULT,
            "was killed by SIGKILL (often by the system when memory runs out, or by kill -9)",
        ),
        (-6, GLOO, NO_FAULT, "was killed by SIGABRT (gloo received 24 bytes where it expected 2)"),
        (-11, GLOO, ABORTED, "was killed by SIGABRT (gloo received 24 bytes where it expected 2)"),
        (
            -6,
            ALLOC,
            NO_FAULT,
            "was killed by SIGABRT (C++ raised std::runtime_error: no more room)",
        ),
        (
            -6,
            "",
            NO_FAULT,
            "was killed by SIGABRT (often gloo: a message was longer than its tensor)",
        ),
        (-6, "", IN_PYTHON, "was killed by SIGABRT"),
        (-11, "", IN_PYTHON, "was killed by SIGSEGV (a fault in compiled code)"),
        (-12, "", NO_FAULT, "was killed by SIGUSR2"),
    ],
)
def test_how_a_process_ended(status, log, fault, words):
    """Of an abort, what gloo or C++ has written; gloo is not blamed for Python's.

    An abort stays one where it ends otherwise while faulthandler looks at the threads.
    """
    ending = ending_of(status, log, fault)
    assert ending.words() == words
    aborts = status == -6 or fault.aborted
    assert ending.may_be_mismatch == (aborts and not fault.in_python and log != ALLOC)


def test_ranks_that_ended_alike_are_named_together():
    """Those that mpiexec ended are left out: another rank's end was the cause."""
    died = {
        3: ending_of(-12),
        0: ending_of(-12),
        1: CUT_OFF,
        2: WITH_ANOTHER,
        4: UNKNOWN,
        5: UNKNOWN,
        6: Ending("was it not?"),
    }
    assert died_words(died) == (
        "ranks 0 and 3 were killed by SIGUSR2; rank 1 was cut off from the notebook; "
        "ranks 4-5 died; rank 6 was it not?"
    )


def test_the_lines_of_a_dead_rank_have_their_text():
    """Those of its cell, and of a line of %px; those of an earlier cell have a number alone."""
    cell = "/tmp/ipykernel_7/2.py"
    earlier = "/tmp/ipykernel_7/1.py"
    file = linecache.__file__
    lines = Line(3, "", file=cell), Line(2, "", "step", earlier), Line(1, "", "load", file)
    shown = lines_of_dead(lines, 7, "%%px\nx = 1\n  step(x)")
    assert shown[:2] == (Line(3, "step(x)"), Line(2, "", "step"))
    assert shown[2].text == '"""Cache lines from Python source files.'
    assert [line.file for line in shown] == ["", "", file]
    assert lines_of_dead((Line(1, "", file=cell),), 7, "%px dist.barrier()") == (
        Line(1, "dist.barrier()"),
    )
    assert lines_of_dead((Line(2, "", file=cell),), 7, "") == (Line(2, ""),)
    (of_another,) = lines_of_dead((Line(3, "", file="/tmp/ipykernel_71/2.py"),), 7, "%%px\nx")
    assert of_another.file == "/tmp/ipykernel_71/2.py"


def test_a_wait_that_timed_out_comes_before_those_that_it_ended():
    """It has closed the connection that another rank waited on, and that one says less."""
    closed = Failure(0, "RuntimeError", "Connection closed by peer", consequence=True)
    timed_out = Failure(1, "RuntimeError", TIMED_OUT, consequence=True)
    assert lines_of(closed, timed_out)[0] == f"rank 1 raised RuntimeError: {TIMED_OUT}"
    assert lines_of(closed, replace(timed_out, message="Socket closed"))[0].startswith(
        "rank 0 raised"
    )


STORE = Failure(0, "DistStoreError", "wait timeout after 6000ms, keys: /group/0")
MISSING = Failure(
    1, "ImportError", "libfabric is missing", (Line(4, "raise ImportError", file="/x/half.py"),)
)
CLOSED = Failure(0, "RuntimeError", "Connection closed by peer", consequence=True)
WAITED = (
    "Ranks wait 60 s for each other, and then 6 s for their connections. "
    "On several hosts, engines=Ssh(interface=...) names the network "
    "on which they reach each other. "
    "Then start the cluster again."
)


@pytest.mark.parametrize(
    ("failed", "missing", "lines"),
    [
        (
            [MISSING],
            [0],
            [
                "rank 1 raised ImportError: libfabric is missing",
                "Correct what rank 1 raised, then ",
            ],
        ),
        (
            [CLOSED, MISSING, STORE],
            [],
            ["rank 1 raised ImportError: libfabric is missing", "Correct what rank 1 "],
        ),
        (
            [STORE],
            [1, 2],
            ["rank 0 raised DistStoreError: wait ", "Ranks 1-2 had not come.", WAITED],
        ),
        ([replace(STORE, rank=2), STORE], [], ["rank 2 raised DistStoreError: wait ", WAITED]),
        ([], [0, 1], ["Ranks 0-1 had not come.", WAITED]),
        (
            [Failure(1, DIED, ending_of(-9).words())],
            [0],
            ["rank 1 was killed by SIGKILL ", "Start the cluster again; "],
        ),
    ],
    ids=["raised", "raised later", "missing", "all waited", "silent", "died"],
)
def test_a_group_that_cannot_be_built_names_the_culprit(failed, missing, lines):
    """The first by time that did not only wait; or the first of all, and who is missing."""
    first, *others = not_built(failed, missing, 60, 6, is_first=True).splitlines()
    others = [line for line in others if not line.startswith("  rank")]
    assert first.startswith(f"The process group could not be built: {lines[0]}")
    assert len(others) == len(lines) - 1
    assert all(line.startswith(start) for line, start in zip(others, lines[1:], strict=True)), (
        others
    )


def test_new_ranks_are_what_may_help_where_old_ones_are_there():
    assert not_built([MISSING], [0], 60, 6, is_first=False).endswith(
        "Correct what rank 1 raised, then call cluster.restart() for new ranks."
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (f"[/__w/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] {TIMED_OUT}", TIMED_OUT),
        (
            "[a/pair.cc:553] Connection closed by peer [127.0.0.1]:13706",
            "Connection closed by peer",
        ),
        (
            "[enforce fail at /gloo/pair.cc:801] state_ >= CONNECTED. 1 vs 4",
            "state_ >= CONNECTED. 1 vs 4",
        ),
        ("Pair is not connected (127.0.0.1:4711 <--> [none])", "Pair is not connected"),
        (
            "[rank3]:[F1123 13:17:28.055 ProcessGroupGloo.cpp:1537] Check failed: a == b",
            "Check failed: a == b",
        ),
        (
            (
                "Got the following error when running the callback: ValueError: no\n\n"
                "At:\n"
                "  /a/b.py(3): run\n"
            ),
            "ValueError: no",
        ),
        (
            (
                "autograd_hooks_ FAILED at "
                '"/__w/pytorch/pytorch/torch/csrc/distributed/c10d/reducer.cpp":1732, please'
            ),
            "autograd_hooks_ FAILED at reducer.cpp:1732, please",
        ),
        ("timeout, keys: //group-2764159972126/0//t4/ready/1", "timeout, keys: t4/ready/1"),
        ("no key '/tmp/distlab-x_1/group-27/0//a b'", "no key 'a b'"),
        ("first\nException raised from run at x.cpp:1\nframe #0", "first"),
        (
            (
                "Caught ValueError in DataLoader worker process 0.\n"
                "Original Traceback (most recent call last):\n"
                '  File "/usr/lib/site-packages/torch/fetch.py", line 57, in fetch\n'
                "    return self.collate(data)\n"
                "           ^^^^^^^^^^^^^^^^^^\n"
                '  File "/home/me/data.py", line 2, in collate\n'
                "    raise ValueError(\n"
                "    ^^^^^^^^\n"
                '  File "/usr/lib/site-packages/torch/last.py", line 5, in last\n'
                "ValueError: no\n"
                "  item"
            ),
            (
                "Caught ValueError in DataLoader worker process 0.\n"
                "Original Traceback (most recent call last):\n"
                '  File "/home/me/data.py", line 2, in collate\n'
                "    raise ValueError(\n"
                "    ^^^^^^^^\n"
                "ValueError: no\n"
                "  item"
            ),
        ),
        (
            "part of group <torch.ProcessGroup object at 0x7f5a3cf8aef0>",
            "part of group <torch.ProcessGroup object>",
        ),
    ],
)
def test_messages_are_made_readable(raw, message):
    """Sources' paths, swapped ports, addresses, C++ stacks and libraries' lines are left out."""
    assert readable(raw, is_torchs=True) == message


@pytest.mark.parametrize(
    "message",
    [
        "cannot reach http://127.0.0.1:8080/x",
        "no ( <--> ) in this text",
        "Dates\n\nAt:\n  noon and later\n",
    ],
)
def test_a_learners_own_message_is_whole(message):
    """An address that torch has written means nothing there, but one of the learner's does."""
    assert made_readable(Failure(0, "ValueError", message)).message == message.strip()


@pytest.mark.parametrize("failed", [{"communicated": True}, {"kind": "DistStoreError"}])
def test_an_address_in_a_message_of_torchs_is_left_out(failed):
    fields = {"kind": "RuntimeError", "message": "closed by peer [127.0.0.1]:13706", **failed}
    assert made_readable(Failure(0, **fields)).message == "closed by peer"


PARTS = (
    "y",
    "[",
    " ",
    "a/",
    "\n",
    ", ",
    "(",
    '"/__w/pytorch/',
    "127.0.0.1:",
    "Group <",
    "/group-1",
    "[a.cc:",
    "File ",
    "\n\nAt:\n  a.py(1): ",
    "\n\nAt:\n  (1): (",
)


@pytest.mark.parametrize("part", PARTS)
def test_a_message_of_a_million_characters_is_readable(part):
    """No pattern begins at each character and looks far: that would take minutes, or hours."""
    long = made_readable(Failure(0, "ValueError", part * (1_000_000 // len(part))))
    assert str(rank_error([long], [0], False, "")).startswith("rank 0 raised ValueError")


def test_consequences_without_a_line_leave_no_gap():
    """Beside one that has a line."""
    culprit = Failure(2, "E", "x")
    closed = Failure(0, "E", "closed", consequence=True)
    with_line = replace(closed, rank=1, lines=(Line(3, "f()"),))
    assert str(rank_error([culprit, closed, with_line], range(3), False, "")).splitlines() == [
        "rank 2 raised E: x",
        "ranks 0-1 waited in communication and could not go on:",
        "  rank 1   line 3   f()",
    ]


@pytest.mark.parametrize(
    ("ranks", "timeout", "words"),
    [
        ([2], 5.0, "rank 2 did not come back within 5 s."),
        ([], 5.0, "the last rank came back only after 5 s."),
        ([0, 1], None, "Ranks 0-1 had not finished."),
        ([], None, "All ranks had finished."),
    ],
)
def test_who_was_late(ranks, timeout, words):
    """Nobody, where the last rank came back at the very moment."""
    assert words_of_late(ranks, timeout) == words


def test_errors_that_were_being_handled_are_shown():
    """Those of ranks that handled the same one in one line, and below all that was raised."""
    own = Failure(0, "ValueError", "no data", (Line(3, "raise ValueError", file="/me/train.py"),))
    closed = Failure(
        0,
        "RuntimeError",
        "Connection closed",
        (Line(5, "dist.barrier()"),),
        consequence=True,
        handled=own,
    )
    raised = [closed, replace(closed, rank=1), Failure(2, "KeyError", "x", (Line(7, "table[x]"),))]
    assert str(rank_error(raised, [0, 1, 2], False, "")).splitlines()[-2:] == [
        "ranks 0-1 had raised ValueError: no data before, and were handling it",
        "  ranks 0-1   train.py:3   raise ValueError",
    ]
    assert list(handled_words(raised[2:])) == []


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("process 0 terminated with signal SIGKILL", ""),
        ("a and b must have same reduction dim, but got", ""),
        (
            "expect_autograd_hooks_ INTERNAL ASSERT FAILED at reducer.cpp:1732",
            "outside of no_sync()",
        ),
        (
            "aten.add.Tensor got mixed torch.Tensor and DTensor, need to convert",
            "distribute_tensor",
        ),
        ("trying to initialize the default process group twice!", "leave init_process_group out"),
        ("asyncio.run() cannot be called from a running event loop", "write await main()"),
        (
            "Check failed: outputShape[0] * worldSize == inputShape[0] (8 vs. 5).",
            "world_size times",
        ),
        ("invalid output tensor list at index 0 (expected length 4, got 3)", "world_size times"),
    ],
)
def test_advice_fits_its_message(message, advice):
    """Once below all that raised, and not below what only looks alike."""
    given = [
        line
        for line in lines_of(*(Failure(r, "Error", message) for r in (0, 1)))
        if line in ADVICE.values()
    ]
    assert [advice in words for words in given] == [True] * bool(advice)


def test_what_was_done_about_ranks():
    """What is left of their variables, and what to do now."""
    assert (
        words_of_freeing(9.0, [1, 2], {}, "")
        == "Ranks 1-2 could not be freed: call cluster.restart()."
    )
    assert words_of_freeing(2.0, [], {1: "and its variables are lost: x"}, "") == (
        "Freed after 2.0 s. Rank 1 could not be freed: a new process took its place, "
        "and its variables are lost: x. "
        "Other ranks keep their variables, and the process group is rebuilt."
    )


REFUSED = {
    ("RuntimeError", "can't start new thread", ""): True,
    ("RuntimeError", "Resource temporarily unavailable", ""): True,
    (
        "BlockingIOError",
        "[Errno 11] Resource temporarily unavailable",
        "    pid = os.fork()\n",
    ): True,
    (
        "BlockingIOError",
        "[Errno 11] Resource temporarily unavailable",
        "    os.read(pipe, 1)\n",
    ): False,
    ("OSError", "[Errno 28] No space left on device: '/dev/full'", ""): False,
}


@pytest.mark.parametrize(("raised", "is_limit"), REFUSED.items())
def test_a_limit_on_processes_is_recognised(raised, is_limit):
    """In Python's and C++'s words; a read that would block has the same words as a fork."""
    kind, message, traceback = raised
    words = lines_of(Failure(0, kind, message, traceback=traceback))
    assert (END_SOME_PROCESSES in words) == is_limit


def test_a_group_that_needs_more_threads_than_there_may_be():
    """To start the cluster again helps only after the advice."""
    raised = Failure(0, "RuntimeError", "Resource temporarily unavailable")
    assert not_built([raised], [1, 2], 60.0, 5.0, is_first=True) == (
        "The process group could not be built: rank 0 raised RuntimeError: "
        "Resource temporarily unavailable\n"
        f"{END_SOME_PROCESSES} Then start the cluster again."
    )


def test_a_rank_that_a_library_ends_for_want_of_a_thread():
    log = "Resource temporarily unavailable (src/thread.cpp:241)"
    assert ending_of(-6, log).words() == "was killed by SIGABRT (it was refused a thread)"


def test_the_rank_that_died_by_itself_comes_before_those_that_mpiexec_ended():
    """In the error's failures, and with its line in the message."""
    line = Line(3, "os.abort()")
    dead = [
        DeadRank(0, WITH_ANOTHER),
        DeadRank(1, ending_of(-11), (line,), "the end of its output"),
    ]
    error = rank_died(dead, [], again="call cluster.restart()", host_lost=False, gone="")
    assert [failed.rank for failed in error.failures] == [1, 0]
    assert error.failures[0].traceback == "the end of its output"
    assert str(error).splitlines() == [
        "rank 1 was killed by SIGSEGV (a fault in compiled code).",
        "  rank 1   line 3   os.abort()",
        "MPI ends a whole program when one of its processes dies: mpiexec has ended rank 0 too.",
        "All variables are lost: call cluster.restart().",
    ]
