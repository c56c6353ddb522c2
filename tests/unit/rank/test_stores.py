"""The learner's own stores, in one process: what waits in them can be ended, and torch's behaviour stays."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from distlab.rank import status
from distlab.rank.log import LOG, describe_failure

pytestmark = pytest.mark.usefixtures("layer")


def tcp_store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(params=["HashStore", "FileStore", "TCPStore", "PrefixStore"])
def store(request, tmp_path):
    """A store of each kind."""
    made = {
        "HashStore": dist.HashStore,
        "FileStore": lambda: dist.FileStore(str(tmp_path / "store"), 1),
        "TCPStore": tcp_store,
        "PrefixStore": lambda: dist.PrefixStore("mine", tcp_store()),
    }
    return made[request.param]()


@pytest.fixture
def on_a_thread():
    """Calls something on a thread; gives what it returns or raises, once that thread waits."""
    threads = []

    def call(what):
        found = []

        def work():
            try:
                found.append(what())
            except Exception as error:
                found.append(error)

        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
        while LOG.now.get(threads[-1].ident) is None and threads[-1].is_alive():
            time.sleep(0.001)

        def outcome(freed=False):
            while freed and threads[-1].is_alive():
                LOG.freed += 1
                time.sleep(0.01)
            threads[-1].join(10)
            return found[0]

        outcome.thread = threads[-1].ident
        return outcome

    yield call
    for thread in threading.enumerate():
        if thread in threads or thread.name == "distlab-wait":
            thread.join(10)
            assert not thread.is_alive()


WAITS = [
    pytest.param(lambda store: store.get("late"), b"value", id="get"),
    pytest.param(lambda store: store.wait(["late"], timedelta(seconds=9)), None, id="wait with a limit"),
    pytest.param(lambda store: store.multi_get(["late"]), [b"value"], id="multi_get"),
]


@pytest.mark.parametrize(("wait", "value"), WAITS)
def test_a_wait_that_is_freed_leaves_the_store_usable(store, on_a_thread, wait, value):
    outcome = on_a_thread(lambda: wait(store))
    failure = describe_failure(outcome(freed=True))
    assert failure.consequence
    assert failure.communicated
    store.set("late", "value")
    assert wait(store) == value


def test_a_wait_is_reported_and_ends_with_the_key(on_a_thread):
    store = dist.HashStore()
    outcome = on_a_thread(lambda: store.get("late"))
    assert status.communication(outcome.thread) == "store.get"
    call = LOG.now[outcome.thread].record()
    assert (call.op, call.function, call.own_limit) == ("store.get", "'late'", True)
    assert 'store.get("late")' in call.lines[-1].text
    store.set("late", "value")
    assert outcome() == b"value"


@pytest.mark.parametrize("wait", [lambda store: store.get("never"), lambda store: store.wait(["never"], 0.03)])
def test_what_does_not_come_in_time_raises_as_in_torch(wait):
    """Of the store, or of the wait, which may be a number of seconds."""
    store = tcp_store()
    store.set_timeout(timedelta(milliseconds=30))
    with pytest.raises(dist.DistStoreError, match=r"^wait timeout after 30ms, keys: /never$"):
        wait(store)


@pytest.mark.parametrize("given", [(), (3,)])
def test_wrong_arguments_are_torchs_to_refuse(given):
    with pytest.raises(TypeError, match="incompatible function arguments"):
        dist.HashStore().wait(*given)


def test_a_store_that_waits_for_its_clients_can_be_freed(on_a_thread):
    limit = timedelta(seconds=2)
    outcome = on_a_thread(lambda: dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=limit))
    assert status.communication(outcome.thread) == "TCPStore"
    assert describe_failure(outcome(freed=True)).consequence
    assert not LOG.store_ports
