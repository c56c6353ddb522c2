"""How a program has ended: words for a person, and a status for the shell."""

import signal
from types import SimpleNamespace

from distlab.diagnosis.endings import ending_of
from distlab.errors import DeadlockError, RankDied, RankError
from distlab.scripts import outcome
from distlab.wire.messages import Failure
from distlab.wire.source import Line

LINE = Line(12, "step()", "step", "/a/train.py")


def raised(rank, kind="ValueError", message="no data", **more):
    return Failure(rank, kind, message, (LINE,), **more)


def error(*failures, kind=RankError, words="as in a notebook"):
    return kind(words, failures)


def test_the_rank_at_fault_comes_first_and_those_that_waited_in_one_sentence():
    waited = [raised(rank, "RuntimeError", "Freed", consequence=True) for rank in (0, 2, 3)]
    assert outcome.words_of(error(raised(1), *waited)) == (
        "Rank 1 raised ValueError: no data at train.py:12 in step.\n"
        "Ranks 0, 2 and 3 waited in communication at train.py:12 in step."
    )


def test_ranks_that_fail_alike_are_said_together():
    words = outcome.words_of(error(raised(0), raised(1), raised(2)))
    assert words == "Ranks 0-2 raised ValueError: no data at train.py:12 in step."


def test_of_a_long_message_the_first_line_is_said_again():
    words = outcome.words_of(error(raised(0, message="first\nsecond")))
    assert words == "Rank 0 raised ValueError: first at train.py:12 in step."


def test_what_makes_sense_in_a_notebook_only_is_left_out():
    words = (
        "stuck.\n  rank 0  barrier()\nFreed after 1.4 s. Variables are kept and the process group "
        "is rebuilt: change the cell and run it again."
    )
    assert outcome.words_of(error(kind=DeadlockError, words=words)) == (
        "DeadlockError: stuck.\n  rank 0  barrier()"
    )
    words = "rank 1 died.\nThe next cell starts a new one, and rebuilds the process group."
    assert outcome.words_of(error(kind=RankDied, words=words)) == "RankDied: rank 1 died."


def test_a_script_that_asks_for_nccl_is_told_what_to_write():
    words = outcome.words_of(error(raised(0, message="no NCCL built in")))
    assert "`distlab run --backend gloo` runs it on CPUs." in words


def test_the_status_is_that_of_the_first_rank_that_failed():
    exits = raised(1, "SystemExit", "3", status=3)
    assert outcome.status_of(error(exits)) == 3
    assert outcome.status_of(error(raised(0), exits)) == 1
    in_order = outcome.in_order((raised(0), exits), first=[1])
    assert outcome.status_of(error(*in_order)) == 3
    waited = raised(1, consequence=True)
    assert outcome.in_order((waited, exits, raised(0)), first=[1])[0] is exits


def test_a_death_has_the_status_of_a_shell():
    statuses = {-9: 137, -6: 134, 7: 7, -64: 192}
    assert {one: ending_of(one).status for one in statuses} == statuses
    died = Failure(1, "RankDied", "was killed", status=137)
    assert outcome.status_of(error(died, kind=RankDied)) == 137


def test_a_signal_to_the_launcher():
    """The ranks' own status if they have ended by themselves; 143 if SIGTERM has ended one."""
    ok = [SimpleNamespace(failure=None)]
    saved = [SimpleNamespace(failure=raised(1, "SystemExit", "5", status=5))]
    ending = SimpleNamespace(asked={0, 1}, killed=set())
    by = signal.SIGTERM
    assert outcome.of_signal(by, [ok, ok], ending) == (
        0,
        "Ended by SIGTERM, after which ranks 0-1 ended by themselves.",
    )
    assert outcome.of_signal(by, [ok, saved], ending)[0] == 5
    ending.killed = {1}
    assert outcome.of_signal(by, [ok, ValueError()], ending) == (
        143,
        "Ended by SIGTERM; rank 1 had to be killed.",
    )


def test_a_report_of_distlabs_own_is_said_as_it_is():
    """Calls that do not match have their lines in the words already."""
    words = "ranks 0-1 raised MismatchError: x\n  rank 0   a.py:1   call()"
    found = outcome.words_of(error(raised(0, "MismatchError"), raised(1), words=words))
    assert found == words


def test_what_a_dead_rank_wrote_last_is_said_again():
    died = Failure(1, "RankDied", "was killed", traceback="a\nout of memory\n", status=137)
    assert outcome.words_of(error(died, kind=RankDied, words="rank 1 was killed.")) == (
        "RankDied: rank 1 was killed.\nThe last line that rank 1 wrote on stderr: out of memory"
    )


def test_an_interrupt_says_where_ranks_were_or_that_they_were_starting():
    assert outcome.words_of_interrupt(KeyboardInterrupt()) == "Interrupted while the ranks started."
    table = (
        "ranks 0-1 had not finished.\n  rank 0  barrier()\nFreed after 0.1 s. Variables are kept."
    )
    assert outcome.words_of_interrupt(KeyboardInterrupt(table)) == (
        "Interrupted: ranks 0-1 had not finished.\n  rank 0  barrier()"
    )


def test_where_nobody_is_at_fault_the_report_says_what_else_is_known():
    """Such as a rank that has destroyed the group."""
    words = "rank 0 destroyed the process group\n  rank 0   a.py:1   destroy_process_group()"
    waited = raised(1, "RuntimeError", "Connection closed by peer", consequence=True)
    assert outcome.words_of(error(waited, words=words)) == f"RankError: {words}"
