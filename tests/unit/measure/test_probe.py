"""The probe's arithmetic, text and pictures, and what it makes of what a cluster returns or raises."""

from types import SimpleNamespace

import pytest
import torch

import distlab
from distlab.client import probe
from distlab.measure import probe_cases
from distlab.measure.probe_result import HISTORY, THEN, Column, Outcome, Probe, then
from distlab.wire.messages import Failure

GLOO, NCCL = Column("gloo", "cpu"), Column("nccl", "cuda")


def made(**other):
    """A probe where all works on gloo but `other` names, and nccl is not built."""
    works = {name: Outcome("works") for name in probe_cases.CASES}
    works |= {name.replace("_", " "): outcome for name, outcome in other.items()}
    return Probe("9.9", 2, {GLOO: works, NCCL: dict.fromkeys(works, Outcome("not built", "built without it"))})


def test_what_a_case_must_give():
    """A premultiplied sum, which gloo cannot try; `holds` wants equal parts with these values, in this order."""
    assert probe_cases.EXPECTED["PREMUL_SUM"]([1, 2]) == 6
    tensor = torch.tensor([1.0, 1.0, 2.0, 2.0])
    assert probe_cases.holds(tensor, 1, 2)
    assert not probe_cases.holds(tensor, 2, 1)
    assert not probe_cases.holds(tensor, 1)


def refusal(message):
    return distlab.RankError("", (Failure(1, "RuntimeError", message),))


DIED = distlab.RankDied("", (Failure(0, "RankDied", "ended with exit status 3"),))


@pytest.mark.parametrize(
    ("answer", "outcome", "restarts"),
    [
        ([True, True], Outcome("works"), 0),
        ([True, False], Outcome("wrong result"), 0),
        (refusal("one\ntwo"), Outcome("refused", "one"), 0),
        (refusal("[enforce fail at device.cc:84] . no address"), Outcome("refused", "no address"), 0),
        (refusal("x" * 200), Outcome("refused", "x" * 157 + "..."), 0),
        (refusal(""), Outcome("refused", "RuntimeError"), 0),
        (refusal(probe.UNBOUND + "!"), Outcome("no device", probe.WANTS_A_DEVICE), 0),
        (DIED, Outcome("ends the process", "the process ended with exit status 3"), 1),
        (distlab.RankTimeout("late\nrank 0"), Outcome("hangs", "late"), 1),
        (distlab.DeadlockError("each waits"), Outcome("hangs", "each waits"), 1),
    ],
)
def test_what_comes_of_a_case(answer, outcome, restarts):
    """What the ranks return or raise, in a word and the first line of the message; new ranks after a hang or death."""

    def run(fn, column, case, meeting, timeout):
        if isinstance(answer, Exception):
            raise answer
        return answer

    restarted = []
    cluster = SimpleNamespace(run=run, restart=lambda: restarted.append(True))
    assert probe.attempt(cluster, GLOO, probe_cases.CASES["barrier"], "") == outcome
    assert len(restarted) == restarts


# --- what it shows ---


def test_the_text_numbers_the_messages():
    """A refusal stands with a number, and its message below, once; what was not tried is named by its columns."""
    refused = Outcome("refused", "no such scalar")
    probed = made(reduce=refused, SUM_int16=refused, barrier=Outcome("wrong result"))
    lines = repr(probed).splitlines()
    assert lines[0] == "torch 9.9 on 2 ranks"
    assert lines[1].split() == ["gloo", "CPU", "nccl", "GPU"]
    rows = {line[:24].strip(): line[24:].split() for line in lines}
    assert (rows["reduce"], rows["barrier"], rows["all_reduce"]) == (["no", "1", "-"], ["WRONG", "-"], ["yes", "-"])
    assert next(line for line in lines if line.startswith("int16")).split()[1:4] == ["no", "1", "yes"]
    assert lines[-3:] == ["", " 1  no such scalar", " -  nccl GPU: built without it"]
    assert probed._repr_html_().count("<table>") == 2
    assert probed.there == [GLOO]


def test_one_outcome():
    """It is asked for by name, backend and device; what was not tried lists what was."""
    probed = made(reduce=Outcome("refused", "why"))
    assert probed.outcome("reduce") == ("refused", "why")
    assert probed.outcome("reduce", "nccl", "cuda").kind == "not built"
    with pytest.raises(distlab.ArgumentError, match=r"^name must be a case that was tried, got 'sum'\. The cases are"):
        probed.outcome("sum")
    with pytest.raises(distlab.ArgumentError, match=r"^backend, device must be one of \('gloo', 'cpu'\), "):
        probed.outcome("reduce", "mpi")


def test_the_tables_of_older_versions():
    """Every cell is there, every function of them has a case today, and the picture has a panel for each table."""
    assert set(THEN.values()) <= set(probe_cases.CASES)
    old, later = map(then, HISTORY)
    assert {tuple(cells) for cells in (*old.values(), *later.values())} == {tuple(THEN)}
    assert list(old) == ["tcp CPU", "tcp GPU", "gloo CPU", "gloo GPU", "mpi CPU", "mpi GPU"]
    assert (old["gloo CPU"]["send"].kind, later["gloo CPU"]["send"].kind) == ("refused", "works")
    assert (later["nccl GPU"]["gather"].kind, later["mpi GPU"]["barrier"].kind) == ("refused", "depends")
    shown = [text.get_text() for ax in made().plot_history().axes for text in ax.texts]
    assert {"oldest torch", "torch 1.0 to 1.3", "torch 9.9, probed"} <= set(shown)
