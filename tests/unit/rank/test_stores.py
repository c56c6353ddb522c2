"""The learner's own stores, in one process: a wait in one is noted, and one that waits for its clients is freed."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from distlab.rank import status
from distlab.rank.log import LOG, describe_failure

pytestmark = pytest.mark.usefixtures("layer")


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


def test_a_wait_is_reported_and_ends_with_the_key(on_a_thread):
    store = dist.HashStore()
    outcome = on_a_thread(lambda: store.get("late"))
    assert status.communication(outcome.thread) == "store.get"
    call = LOG.now[outcome.thread].record()
    assert (call.op, call.function, call.own_limit) == ("store.get", "'late'", True)
    assert 'store.get("late")' in call.lines[-1].text
    store.set("late", "value")
    assert outcome() == b"value"


def test_a_store_that_waits_for_its_clients_can_be_freed(on_a_thread):
    limit = timedelta(seconds=2)
    outcome = on_a_thread(lambda: dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=limit))
    assert status.communication(outcome.thread) == "TCPStore"
    assert describe_failure(outcome(freed=True)).consequence
    assert not LOG.store_ports
