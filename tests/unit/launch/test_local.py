"""What a machine lets a cluster have: what is reported where it is too little, before anything is started."""

import resource
import socket
from types import SimpleNamespace

import psutil
import pytest

import distlab
from distlab.launch import local
from tests.processes import python
from tests.refused import refused

ULIMIT = "For more, run `ulimit -n 4096` in the shell that starts Python or Jupyter."


@pytest.fixture
def allow(monkeypatch):
    """8 GB of memory, 10 threads, and soft limits by name; hard ones are without end."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8e9))
    process = SimpleNamespace(info={"uids": SimpleNamespace(real=1000), "num_threads": 10})
    monkeypatch.setattr(psutil, "process_iter", lambda names: [process])
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.getuid", lambda: 1000)

    def set_limits(**soft):
        soft = {getattr(resource, f"RLIMIT_{name}"): value for name, value in soft.items()}
        endless = resource.RLIM_INFINITY
        monkeypatch.setattr(resource, "getrlimit", lambda which: (soft.get(which, endless), endless))

    return set_limits


@pytest.mark.parametrize(
    ("limits", "n", "engines", "words"),
    [
        ({"NOFILE": 1024, "NPROC": 4096}, 100, "fork", ""),
        (
            {},
            10_000,
            "local",
            "n must be at most 42 on this machine, got 10000. It allows 8 GB of free memory. Call Cluster(42). A rank "
            "takes about 190 MB: close other programs.",
        ),
        (
            {"NOFILE": 128},
            40,
            "fork",
            "n must be at most 4 on this machine, got 40. It allows 128 open files for each process. Call Cluster(4). "
            f"{ULIMIT}",
        ),
        (
            {"NPROC": 100},
            5,
            "fork",
            "n must be at most 4 on this machine, got 5. It allows 100 processes and threads for each user. Call "
            "Cluster(4). End other programs, or ask the administrator of this machine for more (`ulimit -u`).",
        ),
    ],
)
def test_what_a_machine_allows(allow, limits, n, engines, words):
    """The largest cluster that fits is named, and how to get more."""
    allow(**limits)
    if words:
        assert str(refused(local.check, n, engines, kind=distlab.DistlabError)) == words
    else:
        local.check(n, engines)


def test_the_limit_of_processes_does_not_hold_for_root(allow, monkeypatch):
    """The system does not look at it."""
    allow(NPROC=30)
    refused(local.check, 1, "fork", kind=distlab.ClusterError)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    local.check(4, "fork")


def test_a_real_machine_that_lacks_something():
    """The limit is really set: Cluster reports it at once."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    code = f"import distlab\n{limit}\ntry: distlab.Cluster(2)\nexcept distlab.ClusterError as error: print(error)"
    assert "which is too few for one rank. " in python("-c", code, timeout=30).stdout


def test_a_machine_without_loopback(monkeypatch):
    """Nothing is started."""
    monkeypatch.setattr("distlab.wire.rendezvous.listen", lambda: socket.create_server(("203.0.113.1", 0)))
    error = str(refused(distlab.Cluster, 2, kind=distlab.ClusterError))
    assert error.startswith("127.0.0.1 cannot be reached (")
