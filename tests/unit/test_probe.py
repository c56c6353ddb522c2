"""The probe's names, arithmetic, text, tables and data; what it does with processes is in the cluster tests."""

import subprocess
import sys

import pytest

import distlab
from distlab.probing import cases, names, place, reductions, trial
from distlab.probing.history import HISTORY, THEN
from distlab.probing.names import Column, Outcome
from distlab.probing.table import Probe

GLOO, NCCL = Column("gloo", "cpu"), Column("nccl", "cuda")


def made(**other):
    """A probe where all works on gloo but `other` names, and nccl is not built."""
    every = (*names.FUNCTIONS, *names.REDUCTIONS)
    works = {name: Outcome("works") for name in every} | {name.replace("_", " "): o for name, o in other.items()}
    return Probe("9.9", 2, {GLOO: works, NCCL: {name: Outcome("not built", "built without it") for name in every}})


def test_every_name_has_its_case():
    """The names that the tables are made of are those of the cases, in the same order."""
    assert tuple(cases.FUNCTIONS) == names.FUNCTIONS
    assert tuple(reductions.REDUCTIONS) == names.REDUCTIONS
    assert set(trial.CASES) == {*names.FUNCTIONS, *names.REDUCTIONS}


@pytest.mark.parametrize(
    ("op", "dtype", "size", "value"),
    [
        ("SUM", "int32", 4, 7),
        ("AVG", "float32", 2, 1.5),
        ("PRODUCT", "int64", 3, 6),
        ("MIN", "int8", 3, 1),
        ("MAX", "uint8", 3, 3),
        ("BAND", "int64", 2, 0),
        ("BOR", "int64", 2, 3),
        ("BXOR", "bool", 3, True),
        ("SUM", "bool", 4, 2),
        ("PREMUL_SUM", "float64", 2, 6),
    ],
)
def test_what_a_reduction_must_give(op, dtype, size, value):
    """Ranks begin with 1, 2, 3, 1 and so on, or False, True and so on; Python's arithmetic says the rest."""
    import torch

    assert reductions.expected(op, getattr(torch, dtype), size) == value


def test_parts_are_compared_in_their_order():
    """`holds` wants equal parts with these values, in this order."""
    import torch

    tensor = torch.tensor([1.0, 1.0, 2.0, 2.0])
    assert place.holds(tensor, 1, 2)
    assert not place.holds(tensor, 2, 1)
    assert not place.holds(tensor, 1)


def test_a_place_knows_its_numbers():
    """A rank's tensor has its number plus one, the total is the sum of all ranks' and `full` has any value."""
    here = place.Place(rank=2, size=4, device="cpu", seconds=1.0)
    assert here.mine.tolist() == [3.0] * 4
    assert here.total == 10
    assert place.holds(here.full(2, 3), 2)


def test_the_text_numbers_the_messages():
    """A refusal stands with a number, and its message below, once; what was not tried is named by its columns."""
    refused = Outcome("refused", "no such scalar")
    text = repr(made(reduce=refused, SUM_int16=refused, barrier=Outcome("wrong result")))
    lines = text.splitlines()
    assert lines[0] == "torch 9.9 on 2 ranks"
    assert lines[1].split() == ["gloo", "CPU", "nccl", "GPU"]
    assert "reduce                    no 1      -" in lines
    assert "barrier                   WRONG     -" in lines
    assert "all_reduce                yes       -" in lines
    assert next(line for line in lines if line.startswith("int16")).split()[1:4] == ["no", "1", "yes"]
    assert lines[-2:] == [" 1  no such scalar", " -  nccl GPU: built without it"]


def test_a_column_that_was_not_tried():
    """It is named with its reason, as one that is not built is, and has no table of reductions."""
    probe = made()
    cases = {name: Outcome("not tried", "its processes did not start") for name in probe.outcomes[GLOO]}
    probe = Probe("9.9", 2, {**probe.outcomes, NCCL: cases})
    assert probe.there == [GLOO]
    assert repr(probe).splitlines()[-1] == " -  nccl GPU: its processes did not start"
    assert "not tried" in [text.get_text() for ax in probe.plot().axes for text in ax.texts]


def test_the_html_is_coloured_and_escaped():
    """Each cell has its kind's colour and its message as a tip; a message is never markup."""
    page = made(reduce=Outcome("refused", "<b>bold</b>"))._repr_html_()
    assert page.count("<table>") == 2
    assert "<b>bold</b>" not in page
    assert 'title="&lt;b&gt;bold&lt;/b&gt;">no 1</td>' in page


def test_one_outcome():
    """It is asked for by name, backend and device; what was not tried lists what was."""
    probe = made(reduce=Outcome("refused", "why"))
    assert probe.outcome("reduce") == ("refused", "why")
    assert probe.outcome("reduce", "nccl", "cuda").kind == "not built"
    assert probe.there == [GLOO]
    with pytest.raises(
        distlab.ArgumentError, match=r"^name must be a case that was tried, got 'reduse'\. The cases are"
    ):
        probe.outcome("reduse")
    with pytest.raises(distlab.ArgumentError, match=r"^backend, device must be one of \('gloo', 'cpu'\), "):
        probe.outcome("reduce", "mpi")


def test_it_can_be_kept_as_data():
    """JSON brings back the same probe."""
    probe = made(reduce=Outcome("hangs", "timed out"))
    assert Probe.from_json(probe.to_json()) == probe


def test_the_tables_of_older_versions():
    """Every cell is there, and every function of them has a case today."""
    assert set(THEN.values()) <= set(names.FUNCTIONS)
    for table in HISTORY.values():
        for column, cells in table.items():
            assert list(cells) != []
            assert set(cells) == set(THEN), column
    old, later = HISTORY.values()
    assert old[GLOO]["send"].kind == "refused"
    assert later[GLOO]["send"].kind == "works"
    assert later[NCCL]["gather"].kind == "refused"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("one\ntwo", "one"),
        ("[/home/x/gloo/pair.cc:152] timed out", "timed out"),
        ("[enforce fail at device.cc:84] . no address", "no address"),
        ("x" * 200, "x" * 157 + "..."),
        ("", "ValueError"),
    ],
)
def test_messages_without_places_in_sources(message, line):
    """Of a message its first line is kept, without the file that it was raised in."""
    assert trial.first_line(ValueError(message)) == line


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"DISTLAB_PROBE_RANK": "3", "PMI_RANK": "1"}, 3),
        ({"PMI_RANK": "1"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
    ],
)
def test_a_process_knows_its_number(environment, rank):
    """By what the driver or mpiexec has put into its environment."""
    assert trial.own_rank(environment) == rank


def test_bad_arguments():
    """A probe of nothing, of one rank or without a backend is refused before anything starts."""
    with pytest.raises(distlab.ArgumentError) as caught:
        distlab.probe("gloo")
    assert str(caught.value) == "cluster must be a Cluster, got 'gloo'. Call distlab.probe(cluster)."


def test_the_result_costs_no_torch():
    """The notebook's side of the probe does not import torch."""
    code = "import sys, distlab.probing, distlab.probing.driver; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
