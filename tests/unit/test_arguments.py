"""Arguments of Cluster(...): each bad one is refused before anything starts, in the house form, in full."""

from types import SimpleNamespace

import psutil
import pytest

import distlab
from distlab import arguments, processes


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: distlab.Cluster(0), ValueError, "n must be 1 or more, got 0. Call Cluster(4)."),
        (lambda: distlab.Cluster(-2), ValueError, "n must be 1 or more, got -2. Call Cluster(4)."),
        (lambda: distlab.Cluster("4"), TypeError, "n must be a whole number of ranks, got '4'. Call Cluster(4)."),
        (lambda: distlab.Cluster(2.0), TypeError, "n must be a whole number of ranks, got 2.0. Call Cluster(4)."),
        (lambda: distlab.Cluster(True), TypeError, "n must be a whole number of ranks, got True. Call Cluster(4)."),
        (
            lambda: distlab.Cluster(2, init_method="multicast"),
            ValueError,
            "init_method must be one of 'tcp', 'env', 'file', got 'multicast'. "
            'Call Cluster(n) or Cluster(n, init_method="tcp").',
        ),
        (
            lambda: distlab.Cluster(2, timeout="soon"),
            TypeError,
            "timeout must be a number of seconds above 0, got 'soon'. Give for example timeout=5.",
        ),
        (
            lambda: distlab.Cluster(2, timeout=0),
            ValueError,
            "timeout must be a number of seconds above 0, got 0. Give for example timeout=5.",
        ),
        (
            lambda: distlab.Cluster(2, threads=0),
            ValueError,
            "threads must be None or a whole number of 1 or more, got 0. Call Cluster(n, threads=1).",
        ),
    ],
)
def test_bad_arguments_of_cluster(call, kind, message):
    """Nothing starts, and the error says name, rule, value and what to call."""
    with pytest.raises(distlab.ArgumentError) as caught:
        call()
    assert str(caught.value) == message
    assert isinstance(caught.value, kind)
    assert distlab.Cluster.current is None


@pytest.mark.parametrize(("built", "listed"), [({"gloo"}, "'gloo'"), ({"gloo", "nccl"}, "'gloo', 'nccl'")])
def test_a_backend_that_nobody_knows(monkeypatch, built, listed):
    """The error lists what this torch has: gloo in a build for the CPU, nccl too in one for CUDA."""
    monkeypatch.setattr("torch.distributed.is_backend_available", built.__contains__)
    with pytest.raises(distlab.ArgumentError) as caught:
        distlab.Cluster(2, backend="carrier pigeon")
    assert str(caught.value) == (
        f"backend must be a backend that this torch has ({listed}), got 'carrier pigeon'. "
        'Call Cluster(n) or Cluster(n, backend="gloo").'
    )


@pytest.mark.parametrize(
    ("backend", "advice"),
    [
        (
            "mpi",
            "Only a torch that was built from source beside an MPI has it. Call Cluster(n) or Cluster(n, "
            'backend="gloo"). Cluster(n, engines="mpi", backend="mpi4py") runs on MPI without it.',
        ),
        (
            "ucc",
            "Only a torch that was built from source with UCC has it. Call Cluster(n) or Cluster(n, "
            'backend="gloo"). It has the same functions.',
        ),
    ],
)
def test_backends_that_take_a_build_from_source(backend, advice):
    """Where they are not there, the error says what they take and what to call."""
    import torch.distributed as dist

    if dist.is_backend_available(backend):
        pytest.skip(f"this torch has {backend}")
    with pytest.raises(distlab.ArgumentError) as caught:
        distlab.Cluster(2, backend=backend)
    assert str(caught.value).endswith(f", got {backend!r}. {advice}")
    assert distlab.Cluster.current is None


@pytest.mark.parametrize("backend", ["gloo", "GLOO", "mpi4py", "MPI4PY"])
def test_backends_in_either_case(backend):
    """A backend's name may be in capitals, as torch's own."""
    assert arguments.check_backend(backend, 2) == backend.lower()


def test_init_methods_as_torch_writes_them():
    """ "env" and "env://" are the same; others are refused."""
    assert [arguments.check_init_method(name) for name in ("env", "env://", "tcp://", "file://")] == [
        *("env", "env", "tcp", "file"),
    ]
    with pytest.raises(distlab.ArgumentError):
        arguments.check_init_method("udp://")


def test_an_unknown_launcher_lists_those_that_are_installed():
    """The launchers are ipyparallel's entry points."""
    with pytest.raises(distlab.ArgumentError) as caught:
        distlab.Cluster(2, engines="rocket")
    names = ", ".join(processes.launchers())
    assert str(caught.value) == (
        f"engines must be None or one of the launchers installed here ({names}), got 'rocket'. "
        'Call Cluster(n) or Cluster(n, engines="local").'
    )
    assert {"local", "mpi", "slurm", "ssh"} <= set(processes.launchers())
    assert processes.check_launcher("MPI") == "mpi"


def test_more_ranks_than_memory(monkeypatch):
    """The largest cluster is what the free memory holds; the error says how much that is."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8e9))
    assert arguments.check_size(133, "fork") == 133
    assert arguments.check_size(42, "local") == 42
    with pytest.raises(distlab.ArgumentError) as caught:
        distlab.Cluster(10_000, engines="local")
    assert str(caught.value) == (
        "n must be at most 42 on this machine, got 10000. "
        "8 GB of memory are free here and a rank takes about 190 MB. Call Cluster(4)."
    )


def test_a_very_long_value_is_shortened():
    """The repr of a value never fills the screen."""
    with pytest.raises(distlab.ArgumentError) as caught:
        distlab.Cluster("9" * 10_000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([2], "rank 2"),
        ([0, 1], "ranks 0-1"),
        ([0, 1, 2, 3], "ranks 0-3"),
        ([3, 0], "ranks 0 and 3"),
        ([0, 2, 3], "ranks 0, 2 and 3"),
        ([0, 2, 5, 6, 7], "ranks 0, 2 and 5-7"),
    ],
)
def test_rank_list(ranks, words):
    """Ranks are named in words, runs folded."""
    from distlab.errors import rank_list

    assert rank_list(ranks) == words
