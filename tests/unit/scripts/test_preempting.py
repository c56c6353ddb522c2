"""`--preempt`: what can be asked for, and what is refused before any rank starts."""

import pytest

from distlab.errors import ArgumentError
from distlab.scripts import options
from distlab.scripts.preempting import orders_of
from distlab.wire.preemption import Order


def test_orders():
    """A rank and a time, a rank and a step, all ranks with their children, and several of them."""
    assert orders_of(["1:20", "0:step3", "all:0.5"], 2) == (
        Order((1,), after=20.0),
        Order((0,), step=3),
        Order((0, 1), after=0.5, whole_group=True),
    )


@pytest.mark.parametrize(
    "asked", ["1", "1:", "x:20", "1:step", "1:step0", "1:0", "1:-3", "1:nan", "2:20", "1:stepx"]
)
def test_bad_orders(asked):
    """Each is refused with an example."""
    with pytest.raises(ArgumentError, match=r"--preempt must be .*, got '.*'\. For example: "):
        orders_of([asked], 2)


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


def test_the_command_refuses_them_with_status_2(script, capsys):
    """As it does with any other option."""
    for given in (["--preempt", "7:1"], ["--preempt", "0:1", "--grace", "-1"]):
        with pytest.raises(SystemExit) as end:
            options.read([*given, "train.py"])
        assert end.value.code == 2
    words = capsys.readouterr().err
    assert "--preempt must be for a rank from 0 to 0, got '7:1'." in words
    assert "--grace/--shutdown-timeout: must be a number of seconds above 0" in words


def test_the_command_reads_them(script):
    """Several orders, and the grace time, which is the usual one where none is given."""
    given = ["--nproc-per-node", "2", "--preempt", "0:1", "--preempt", "1:step2", "train.py"]
    chosen = options.read(given)
    assert chosen.preempt == (Order((0,), after=1.0), Order((1,), step=2))
    assert chosen.grace is None
