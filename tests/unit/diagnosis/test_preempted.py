"""What is said of a preemption, from what was recorded."""

from dataclasses import replace

from distlab.diagnosis import preempted
from distlab.diagnosis.preempted import (
    EndOfRank,
    PreemptionRecord,
    RankPreempted,
    SavedFile,
    words_of_preemption,
)
from distlab.wire import messages
from distlab.wire.messages import CallRecord, Failure, Moment, RankStatus
from distlab.wire.source import Line

STEP = (Line(11, "optimizer.step()", "train", "/home/me/train.py"),)
WAIT = (Line(9, "dist.all_reduce(x)", "train", "/home/me/train.py"),)
CALL = CallRecord("all_reduce", messages.COLLECTIVE, (0, 1), group="0")
COMPUTES = RankStatus(1, messages.COMPUTING, None, STEP)
WAITS = RankStatus(1, messages.COMMUNICATING, CALL, WAIT)
HANDLER = "on_term, train.py:5"


def at_step(words=HANDLER, **known):
    """The signal at the end of the third optimizer step."""
    return Moment(messages.SIGNAL_CAME, 100.0, 3, words, COMPUTES, at_step=True, **known)


def at_time(status, words=HANDLER):
    """The signal at a time."""
    return Moment(messages.SIGNAL_CAME, 100.0, 0, words, status)


def began(clock, lines=STEP):
    return Moment(messages.HANDLER_BEGAN, clock, lines=lines)


def returned(words=""):
    return Moment(messages.HANDLER_ENDED, 101.0, words=words)


def words_of(one, **more):
    return words_of_preemption(PreemptionRecord((one,), **more)).splitlines()


PREEMPTED = RankPreempted(1, "asked for after 20 s", 5.0, signal=at_step())


def test_no_handler():
    """The default of SIGTERM ends a process, which no line of the program can notice."""
    died = EndOfRank(preempted.DIED, 0.02, "was killed by SIGTERM")
    other = EndOfRank(preempted.WAITED)
    one = replace(PREEMPTED, signal=at_step(words=""), end=died)
    assert words_of(one, others={0: other}, doing={0: WAITS}) == [
        "Rank 1 got SIGTERM at the end of optimizer step 3, at train.py:11 in train. It had no "
        "handler for SIGTERM, which then ends a process at once. SIGTERM ended it.",
        "Rank 0 waited in all_reduce() at train.py:9 in train, and could not go on.",
        "Nothing was saved after the signal by torch.save or torch.distributed.checkpoint.",
    ]


def test_a_flag_and_a_checkpoint():
    """The good end: the handler returns, every rank ends, and the file is whole."""
    end = EndOfRank(preempted.RETURNED, 0.31)
    one = replace(PREEMPTED, end=end, began=began(100.01), returned=returned())
    saved = ((SavedFile("ckpt.pt", "complete: it can be loaded"), (0,)),)
    assert words_of(one, others={0: end, 2: end}, saves=saved) == [
        "Rank 1 got SIGTERM at the end of optimizer step 3, at train.py:11 in train. Its handler "
        "(on_term, train.py:5) ran at once, and returned. It ended by itself 0.3 s after the "
        "signal, without an error.",
        "Ranks 0 and 2 ended without an error.",
        "Saved after the signal by rank 0: ckpt.pt (complete: it can be loaded).",
    ]


def test_a_handler_that_never_runs():
    """Python runs no handler while the main thread is inside of gloo."""
    one = replace(PREEMPTED, signal=at_time(WAITS), after_begin=20.04, killed=True, at_kill=WAITS)
    assert words_of(one)[0] == (
        "Rank 1 got SIGTERM after 20.0 s and 0 optimizer steps, waiting in all_reduce() at "
        "train.py:9 in train. Its handler (on_term, train.py:5) did not run. Python runs one only "
        "between two instructions of the main thread, which did not come back from all_reduce(). "
        "It was killed (SIGKILL) after 5 s of grace, waiting in all_reduce() at train.py:9 in "
        "train."
    )


def test_a_handler_that_runs_late():
    """It runs where the main thread is back in Python."""
    one = replace(
        PREEMPTED,
        signal=at_time(WAITS),
        after_begin=1,
        began=began(101.52, WAIT),
        returned=returned("SystemExit: 3"),
        end=EndOfRank(preempted.RAISED, 1.6, "SystemExit: 3"),
    )
    assert (
        "ran 1.5 s later, when all_reduce() had returned, at train.py:9 in train, and raised "
        "SystemExit: 3. It ended by itself 1.6 s after the signal, with SystemExit: 3."
    ) in words_of(one)[0]


def test_a_handler_that_waits_for_others():
    """What it raised when it was freed is distlab's doing, and not said."""
    barrier = CallRecord("barrier", messages.COLLECTIVE, (0, 1), group="0")
    failure = Failure(1, "RuntimeError", "", WAIT, consequence=True, call=barrier)
    one = replace(
        PREEMPTED,
        began=began(100.0),
        returned=returned("RuntimeError: Connection closed"),
        end=EndOfRank(preempted.WAITED, 1.2, failure=failure),
    )
    assert words_of(one)[0].endswith(
        "ran at once, and had not returned at the end. It waited in barrier() at train.py:9 in "
        "train, and could not go on."
    )


def test_ranks_that_do_the_same_are_one_paragraph():
    """Their times may differ: the longest is said."""
    ends = [EndOfRank(preempted.RETURNED, seconds) for seconds in (0.1, 0.4, 0.2)]
    ranks = tuple(
        replace(PREEMPTED, rank=rank, end=end, began=began(100.0), returned=returned())
        for rank, end in enumerate(ends)
    )
    first, *others = words_of_preemption(PreemptionRecord(ranks)).splitlines()
    assert first.startswith("Each of ranks 0-2 got SIGTERM at the end of optimizer step 3")
    assert "0.4 s after the signal" in first
    assert len(others) == 1


def test_no_signal():
    """A program that ended before is said to have done so; nothing is said of the others."""
    end = EndOfRank(preempted.RETURNED, 0)
    one = RankPreempted(1, "asked for after 20 s", 5.0, end=end, steps=7)
    assert words_of(one, others={0: end}) == [
        "Rank 1 got no SIGTERM (asked for after 20 s): the program ended before, after 7 optimizer "
        "steps."
    ]


def test_what_is_not_known_is_not_said():
    """A handler that was set past Python's module, or in compiled code, is not watched."""
    one = replace(PREEMPTED, signal=at_step(watched=False))
    assert "Whether its handler (on_term, train.py:5) ran was not seen." in words_of(one)[0]
    one = replace(PREEMPTED, signal=at_step(words="ignored"))
    assert "It ignored SIGTERM." in words_of(one)[0]


def test_children():
    """Workers of a DataLoader get the signal only where it is sent to the whole group."""
    one = replace(PREEMPTED, signal=at_step(children=2))
    assert words_of(one)[0].endswith(
        "Its 2 child processes did not get SIGTERM. torchrun and Slurm also send it to child "
        "processes."
    )
    one = replace(PREEMPTED, signal=at_step(children=1, whole_group=True))
    assert words_of(one)[0].endswith("Its 1 child process also got SIGTERM.")


def test_others_that_were_interrupted():
    """A rank that distlab has interrupted is said to have done what it did."""
    interrupted = EndOfRank(preempted.RAISED, 2.0, "KeyboardInterrupt")
    doing = {0: RankStatus(0, messages.COMPUTING, None, STEP)}
    assert words_of(PREEMPTED, others={0: interrupted}, doing=doing)[1] == (
        "Rank 0 was computing at train.py:11 in train."
    )
