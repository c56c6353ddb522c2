"""A learner's own stores: where their waits end by themselves, all is as torch alone has it."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from distlab.rank import stores
from distlab.rank.log import LOG
from distlab.wire.rendezvous import free_ports, listen

pytestmark = pytest.mark.usefixtures("layer")
SHORT = timedelta(milliseconds=30)
WAITS = [
    ("get", ("key",)),
    ("multi_get", (["key", "written"],)),
    ("wait", (["key"],)),
    ("wait", (["written", "key"], SHORT)),
    ("wait", (["key"], 0.03)),
    ("queue_pop", ("items",)),
    ("queue_pop", ("items", False)),
    ("get", (3,)),
    ("wait", ("key",)),
    ("get", ()),
]


def in_file(path):
    return dist.FileStore(str(path / "store"), 1)


def in_memory(path):
    return dist.HashStore()


def with_prefix(path):
    return dist.PrefixStore("run", dist.PrefixStore("step", dist.HashStore()))


def without_file(path):
    return dist.FileStore(str(path / "missing"))


def outcome(call, *args, **kwargs):
    """What a call returns, or how it fails."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error).split("\nException raised")[0].split("Invoked with")[0]


@pytest.fixture
def noted(monkeypatch):
    """The words of every call that was noted."""
    words = []
    enter = stores.InCall.__enter__
    monkeypatch.setattr(
        stores.InCall, "__enter__", lambda self: words.append(self._note.op) or enter(self)
    )
    return words


@pytest.mark.parametrize(
    ("make", "name", "args"),
    [(make, *wait) for make in (in_memory, with_prefix) for wait in WAITS]
    # a file is looked at for a second at least
    + [(in_file, "get", ("key",)), (without_file, "wait", (["key"],))],
)
def test_a_wait_ends_as_in_torch(make, name, args, tmp_path, noted):
    """The error's type, words and time; and the store's own timeout is as before."""
    store = make(tmp_path)
    if make is not without_file:
        store.set("written", "there")
    store.set_timeout(SHORT)
    expected = outcome(getattr(dist.Store, name).__wrapped__, store, *args)
    assert outcome(getattr(store, name), *args) == expected
    assert store.timeout == SHORT
    assert noted == [f"store.{name}"]


def test_what_is_there_is_returned(tmp_path):
    store = in_file(tmp_path)
    store.set("key", "value")
    assert (store.get("key"), store.multi_get(["key"]), store.wait(["key"])) == (
        b"value",
        [b"value"],
        None,
    )


@pytest.mark.parametrize("milliseconds", [30, 300])
def test_a_client_without_a_server_fails_as_in_torch(milliseconds, monkeypatch, noted):
    """Also where most of the time was spent in steps."""
    monkeypatch.setattr(stores, "LAST_TRY", timedelta(milliseconds=100))
    (port,) = free_ports(1)  # below those that a client may get, or torch's could meet itself
    kind, words = outcome(
        dist.TCPStore, "127.0.0.1", port, 2, timeout=timedelta(milliseconds=milliseconds)
    )
    where = f"(127.0.0.1, {port})"
    assert (kind, words) == (
        dist.DistNetworkError,
        (
            "The client socket has timed out after "
            f"{milliseconds}ms while trying to connect to {where}."
        ),
    )
    assert noted == ["TCPStore"]


@pytest.mark.parametrize(
    "args", [(), (5, 29500), ("127.0.0.1", "x"), ("127.0.0.1", 99999999), ("a", 1, 1, False, "x")]
)
def test_wrong_arguments_are_torchs_to_refuse(args):
    kind, words = outcome(dist.TCPStore, *args)
    assert kind is TypeError
    assert "incompatible constructor arguments" in words


def test_a_server_that_comes_late_is_found(monkeypatch):
    """The store has the timeout that it was given."""
    with listen() as free:
        port = free.getsockname()[1]
    looked = threading.Event()
    listens = stores._listens
    monkeypatch.setattr(stores, "_listens", lambda *args: looked.set() or listens(*args))
    served = []

    def serve():
        looked.wait()
        served.append(dist.TCPStore("127.0.0.1", port, 2, is_master=True))

    server = threading.Thread(target=serve)
    server.start()
    client = dist.TCPStore("127.0.0.1", port, 2, timeout=timedelta(seconds=60))
    server.join()
    assert client.timeout == timedelta(seconds=60)


@pytest.mark.parametrize("make", [in_file, in_memory, with_prefix, without_file])
def test_a_rank_that_is_freed_leaves_no_thread_in_a_store(make, tmp_path, noted):
    """It raises what reports take for a consequence."""
    store = make(tmp_path)
    freed = threading.Thread(target=free_when, args=(lambda: noted,))
    freed.start()
    found = outcome(store.get, "key")
    freed.join()
    assert found == (RuntimeError, "Freed while it waited for other processes, in store.get.")
    assert "distlab-wait" not in [thread.name for thread in threading.enumerate()]


def test_a_client_that_is_freed_ends_its_thread(noted):
    with listen() as free:
        port = free.getsockname()[1]
    freed = threading.Thread(target=free_when, args=(lambda: noted,))
    freed.start()
    found = outcome(dist.TCPStore, "127.0.0.1", port, 2)
    freed.join()
    assert found == (RuntimeError, "Freed while it waited for other processes, in TCPStore.")
    for thread in threading.enumerate():
        if thread.name == "distlab-wait":
            thread.join(timeout=30)
            assert not thread.is_alive()


def free_when(holds):
    while not holds() or not any(LOG.waiting_in.values()):
        threading.Event().wait(0.001)
    threading.Event().wait(0.1)
    LOG.freed += 1
