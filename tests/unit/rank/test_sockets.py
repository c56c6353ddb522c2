"""Which threads of a rank are gloo's: a proof of a deadlock rests on it, also with a torch that does not name them."""

import os
import select
import sys
import threading

import pytest

from distlab.rank import sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are told from /proc, which only Linux has")


@pytest.fixture
def polling():
    """Starts a thread that waits in epoll for some milliseconds at a time; gives its number."""
    end, threads = threading.Event(), []

    def start(milliseconds):
        def work():
            with select.epoll() as poll:
                while not end.is_set():
                    poll.poll(milliseconds / 1000)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return threads[-1].native_id

    yield start
    end.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("milliseconds", "is_loop"), [(10, True), (20, False)])
def test_a_thread_that_waits_as_gloos_loop_does_gets_its_name(polling, milliseconds, is_loop):
    if not os.access("/proc/self/syscall", os.R_OK):
        pytest.skip("this kernel does not tell what a thread waits in")
    thread = polling(milliseconds)
    for _ in range(1000):  # it may just have been running
        sockets._name_loop(thread)
    with open(f"/proc/self/task/{thread}/comm") as file:
        assert (file.read().strip() == sockets.GLOO_LOOP) == is_loop
