"""What a machine lets a cluster have: what is said where it is too little, before anything is started."""

import resource
from types import SimpleNamespace

import psutil
import pytest

import distlab
from distlab.client import doctor
from distlab.launch import limits
from tests.processes import python
from tests.refused import refused

ULIMIT = "For more, run `ulimit -n 4096` in the shell that starts Python or Jupyter."


@pytest.fixture
def allow(monkeypatch):
    """8 GB of memory, and what getrlimit answers: soft limits by name; hard ones are without end."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8e9))

    def set_limits(**soft):
        soft = {getattr(resource, f"RLIMIT_{name}"): value for name, value in soft.items()}
        endless = resource.RLIM_INFINITY
        monkeypatch.setattr(resource, "getrlimit", lambda which: (soft.get(which, endless), endless))
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        monkeypatch.setattr(limits, "_threads_of_user", lambda limit: 10)

    return set_limits


def refusal(n):
    error = refused(limits.check, n, "fork", kind=distlab.DistlabError)
    return type(error), str(error)


def test_enough_is_enough(allow):
    """Without limits, and with those of a usual system, nothing is refused."""
    allow()
    limits.check(133, "fork")
    allow(NOFILE=1024, NPROC=4096)
    limits.check(100, "fork")


def test_more_ranks_than_memory(allow):
    """The largest cluster is what the free memory holds; the error says how much that is."""
    allow()
    limits.check(42, "local")
    assert str(refused(distlab.Cluster, 10_000, engines="local")) == (
        "n must be at most 42 on this machine, got 10000. It allows 8 GB of free memory. Call Cluster(42). "
        "A rank takes about 190 MB: close other programs."
    )


def test_too_few_open_files(allow):
    """For this many ranks, the number that would do is named; for one rank, how to get more."""
    allow(NOFILE=128)
    words = "n must be at most 4 on this machine, got 40. It allows 128 open files for each process. Call Cluster(4). "
    assert refusal(40) == (distlab.ArgumentError, words + ULIMIT)
    allow(NOFILE=64)
    words = (
        "No cluster can be started: this machine allows 64 open files for each process, which is too few for one rank. "
    )
    assert refusal(1) == (distlab.ClusterError, words + ULIMIT)


def test_too_few_processes(allow, monkeypatch):
    """The threads that the user has already count, and the limit does not hold for root."""
    allow(NPROC=100)
    kind, words = refusal(5)
    assert kind is distlab.ArgumentError
    assert words == (
        "n must be at most 4 on this machine, got 5. It allows 100 processes and threads for each user. "
        "Call Cluster(4). End other programs, or ask the administrator of this machine for more (`ulimit -u`)."
    )
    allow(NPROC=30)
    assert refusal(1)[0] is distlab.ClusterError
    monkeypatch.setattr("os.geteuid", lambda: 0)
    limits.check(4, "fork")


def test_no_loopback(monkeypatch):
    """An interface that is down, or that has an IPv6 address only."""

    def refuse():
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(limits, "listen", refuse)
    assert refusal(1) == (
        distlab.ClusterError,
        "127.0.0.1 cannot be reached ([Errno 99] Cannot assign requested address), over which notebook and ranks talk. "
        "Bring the loopback interface up, as root: `ip link set lo up; ip address replace 127.0.0.1/8 dev lo`.",
    )


def test_the_doctor_tells_the_limits(allow):
    """Too few for the lessons is a note, too few for a rank is vital."""
    allow(NOFILE=128, NPROC=30)
    memory, files, processes = doctor.check_limits()
    assert memory.seen == "8 GB of free memory, room for about 133 ranks"
    assert (files.ok, files.vital) == (True, False)
    assert files.seen == "128 open files for each process, room for about 4 ranks"
    assert (processes.ok, processes.vital) == (False, True)
    assert processes.advice.startswith("End other programs")


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))", "allows 64 open files"),
        ("import ctypes; assert ctypes.CDLL(None).unshare(0x40000000) == 0", "127.0.0.1 cannot be reached"),
    ],
    ids=["64 descriptors", "no loopback"],
)
def test_a_real_machine_that_lacks_something(before, words):
    """The limit is really set, or the process has a network without a loopback: Cluster says it at once."""
    code = f"import distlab\n{before}\ntry: distlab.Cluster(2)\nexcept distlab.ClusterError as error: print(error)"
    done = python("-c", code, timeout=30)
    if "AssertionError" in done.stderr:
        pytest.skip("this user may not make a network of its own")
    assert words in done.stdout
