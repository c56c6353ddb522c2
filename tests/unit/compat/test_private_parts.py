"""Private parts of other libraries: each is in what is installed. That none is used elsewhere is a rule of ruff's."""

from importlib.metadata import version

from distlab import __main__ as doctor


def test_nothing_is_missing_here():
    """The installed torch has every private part that is used, says the doctor."""
    (finding,) = doctor.check_internals()
    assert (finding.seen, finding.ok) == (f"as expected in torch {version('torch')}", True)


def test_a_missing_part_is_named(monkeypatch):
    """The sentence has the library, its version, the name and what does not work; other parts are not named."""
    name = "torch.distributed.distributed_c10d.default_pg_timeout"
    monkeypatch.delattr(name)
    (finding,) = doctor.check_internals()
    here = f"torch {version('torch')}"
    words = f"{here} has no {name}, which distlab.compat.torch uses."
    assert (finding.seen, finding.ok, finding.vital) == (words, False, False)
