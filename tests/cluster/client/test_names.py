"""A cell may take any name, and may take away what the engine needs: the rank is freed, interrupted and works on."""

import contextlib
import os
import signal
import sys
import time
import warnings

import pytest
import torch
import torch.distributed as dist

import distlab

CLUSTER = {"n": 3, "timeout": 60}
pytestmark = pytest.mark.usefixtures("quick_watch")


# --- names ---


@pytest.mark.parametrize("name", ["settle", "run_code", "do_apply", "describe_failure", "showtraceback"])
def test_a_function_may_have_any_name(usable, name):
    """One that computes is interrupted, one that waits is named; its variables are kept, so it was not replaced."""
    usable.push({"kept": 1})

    def with_name(body):
        names = {"time": time, "dist": dist, "torch": torch}
        exec(compile(f"def {name}(rank, world_size):\n    {body}", "lesson.py", "exec"), names)
        return names[name]

    with pytest.raises(distlab.RankTimeout, match=r"ranks 0-2 +computes"):
        usable.run(with_name("while True: pass"), timeout=1)
    with pytest.raises(distlab.DeadlockError, match="3 of 3 ranks wait for each other; nobody will send"):
        usable.run(with_name("dist.recv(torch.ones(1), src=(rank + 1) % 3)"))
    assert usable.pull("kept") == [1] * 3


# --- signals ---


@pytest.mark.parametrize("handler", [lambda *_: None, signal.SIG_IGN], ids=["handled", "ignored"])
@pytest.mark.parametrize("how", ["recv", "sleep"])
def test_a_rank_is_brought_back_whatever_its_cell_does_with_signals(usable, handler, how):
    """It is freed from a call, and interrupted in Python's own; it is not replaced."""
    usable.push({"kept": 1})

    def program(rank, world_size):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, handler)
        if how == "recv":
            dist.recv(torch.ones(1), src=(rank + 1) % world_size)
        time.sleep(60)

    expected = distlab.DeadlockError if how == "recv" else distlab.RankTimeout
    with pytest.raises(expected, match="Variables are kept"):
        usable.run(program, timeout=None if how == "recv" else 0.5)
    assert usable.pull("kept") == [1] * 3
    usable.heal()


# --- what a cell may take away ---


def lose_stdout():
    sys.stdout = None


def close_the_streams():
    sys.stdout.close()
    sys.stderr.close()


def replace_the_streams_by_what_cannot_write():
    sys.stdout = sys.stderr = object()


def lose_stdout_and_raise():
    sys.stdout = sys.stderr = None
    raise ValueError("after that")


def clear_the_environment():
    os.environ.clear()


def make_warnings_errors():
    warnings.simplefilter("error")


def change_the_default_device():
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)


def take_builtin_names():
    import __main__

    for name in ("list", "dict", "len", "dist", "torch", "rank", "world_size"):
        setattr(__main__, name, 5)


def leave_an_alarm():
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(1)


LOSSES = [
    lose_stdout,
    close_the_streams,
    replace_the_streams_by_what_cannot_write,
    lose_stdout_and_raise,
    clear_the_environment,
    make_warnings_errors,
    change_the_default_device,
    take_builtin_names,
    leave_an_alarm,
]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
@pytest.mark.parametrize("way", ["run", "cell"])
def test_the_rank_works_on_after_a_cell_that_took_something_away(nothing_left, capsys, usable, lose, way):
    """The next calls print, communicate, know their rank, and the group is rebuilt; nothing was replaced."""
    pids = [row["pid"] for row in usable.describe()]
    usable.push({"lose": lose})
    fails = "raise" in lose.__name__
    if way == "cell":
        replies = usable.client[:].execute("lose()", block=False).get(return_exceptions=True)
        assert all(getattr(reply, "ename", "ValueError") == "ValueError" for reply in replies)
    else:
        with pytest.raises(distlab.RankError, match="after that") if fails else contextlib.nullcontext():
            usable.run(lambda rank, world_size: lose())
    capsys.readouterr()

    def report(rank, world_size):
        print("heard", rank)
        return rank, os.environ["RANK"], os.environ["WORLD_SIZE"]

    assert usable.run(report) == [(rank, str(rank), "3") for rank in range(3)]
    said = capsys.readouterr().out
    assert all(f"heard {rank}" in said for rank in range(3))
    usable.heal()
    usable.run(put_defaults_back)
    assert [row["pid"] for row in usable.describe()] == pids


def put_defaults_back(rank, world_size):
    import __main__

    warnings.resetwarnings()
    torch.set_default_device("cpu")
    torch.set_default_dtype(torch.float32)
    for name in ("list", "dict", "len"):
        __main__.__dict__.pop(name, None)
