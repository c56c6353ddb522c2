"""Private parts of other libraries: each is in what is installed. That none is used elsewhere is a rule of ruff's."""

from importlib.metadata import version

import pytest

from distlab.client import doctor
from distlab.compat import versions


def test_nothing_is_missing_here():
    """The installed torch, ipyparallel, IPython and ipykernel have every private part that is used, says the doctor."""
    names = ("torch", "ipyparallel", "ipython", "ipykernel")
    (finding,) = doctor.check_internals()
    assert finding.seen == f"as expected in {', '.join(f'{name} {version(name)}' for name in names)}"
    assert finding.ok


@pytest.mark.parametrize(
    ("library", "part", "use"),
    [
        ("torch", "torch.distributed.distributed_c10d.default_pg_timeout", "give subgroups the cluster's timeout"),
        ("ipyparallel", "ipyparallel.engine.nanny.KernelNanny", "tell which rank ended first under mpiexec"),
        ("ipykernel", "ipykernel.kernelbase.Kernel._publish_status", "spare the message that a rank is busy"),
    ],
)
def test_a_missing_part_is_named(monkeypatch, library, part, use):
    """The sentence has the library, its version, the name and what does not work; other parts are not named."""
    monkeypatch.delattr(part)
    (finding,) = doctor.check_internals()
    assert finding.seen.startswith(f"{library} {version(library)} has no {part}, without which distlab cannot {use}")
    assert (finding.ok, finding.vital) == (False, False)


def test_a_missing_attribute_or_module_is_named():
    """What a class gives its objects is looked for in its text; a module may be gone as a whole."""
    there = {"ipyparallel:AsyncResult._children": "a", "ipyparallel:AsyncResult._nowhere": "do b"}
    gone = {"ipyparallel.nowhere:name": "do c", "ipyparallel:nowhere.name": "do d"}
    here = f"ipyparallel {version('ipyparallel')} has no ipyparallel"
    assert versions.missing(there | gone) == [
        f"{here}.AsyncResult._nowhere, without which distlab cannot do b.",
        f"{here}.nowhere.name, without which distlab cannot do c.",
        f"{here}.nowhere.name, without which distlab cannot do d.",
    ]
