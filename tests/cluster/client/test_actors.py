"""Correct programs in which something that is hard to see will act: none of them is a deadlock. Runs real ranks."""

import _thread
import asyncio
import functools
import os
import queue
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tornado.ioloop import IOLoop

from tests.refused import raised

LATER = 0.8  # seconds: longer than it takes to report a deadlock here

CLUSTER = {"n": 3, "timeout": 60}
pytestmark = pytest.mark.usefixtures("quick_watch")


def send(*_):
    dist.send(torch.ones(2), dst=1)


def pause_and_send(*_):
    time.sleep(LATER)
    send()


async def wait_and_send():
    await asyncio.sleep(LATER)
    send()


# --- what acts later on rank 0, whose cell has ended ---


def a_thread():
    threading.Thread(target=pause_and_send).start()


def a_timer_whose_code_has_not_begun():
    threading.Timer(LATER, send).start()


def a_thread_that_threading_does_not_know():
    _thread.start_new_thread(pause_and_send, ())


def a_thread_with_a_name_of_ours():
    threading.Thread(target=pause_and_send, name="distlab-watchdog").start()


def a_task_inside_another_wait():
    asyncio.get_running_loop().kept = asyncio.ensure_future(asyncio.wait_for(wait_and_send(), 60))


def a_timer_of_the_loop():
    asyncio.get_running_loop().call_later(LATER, functools.partial(send))


def a_timer_of_tornado():
    IOLoop.current().call_later(LATER, send)


def a_reader_of_the_loop():
    here, there = os.pipe()
    loop = asyncio.get_running_loop()

    def arrived():
        loop.remove_reader(here)
        send()

    loop.add_reader(here, arrived)
    subprocess.Popen(["sh", "-c", f"sleep {LATER}; echo x"], stdout=there)


def an_alarm():
    signal.signal(signal.SIGALRM, send)
    signal.setitimer(signal.ITIMER_REAL, LATER)


def a_child_that_sends_a_signal():
    signal.signal(signal.SIGHUP, send)
    subprocess.Popen(["sh", "-c", f"sleep {LATER}; kill -HUP $PPID"])


def a_child_that_ends():
    signal.signal(signal.SIGCHLD, send)
    subprocess.Popen(["sleep", str(LATER)])


def a_callback_of_a_pool():
    pool = ThreadPoolExecutor(1)
    pool.submit(time.sleep, LATER).add_done_callback(send)


ACTORS = [actor for name, actor in [*globals().items()] if name.startswith(("a_", "an_"))]


@pytest.mark.parametrize("actor", ACTORS, ids=lambda actor: actor.__name__)
def test_what_will_send_later_is_no_deadlock(usable, actor):
    """Rank 0 finishes and something on it sends later; rank 1 waits for that until it comes."""

    def program(rank, world_size):
        if rank == 0:
            actor()
        elif rank == 1:
            dist.recv(torch.empty(2), src=0)

    usable.run(program)
    usable.heal()


# --- what rank 0 does in its cell ---


def computes_in_c():
    end = time.monotonic() + LATER
    while time.monotonic() < end:
        torch.ones(700, 700) @ torch.ones(700, 700)


def waits_for_a_thread_of_its_own():
    batches = queue.Queue()
    threading.Timer(LATER, batches.put, [1]).start()
    batches.get()


@pytest.mark.parametrize("busy", [computes_in_c, waits_for_a_thread_of_its_own])
def test_a_slow_rank_is_no_deadlock(usable, busy):
    """The others may wait for it."""
    usable.run(lambda rank, world_size: (rank == 0 and busy(), dist.barrier()))


def test_a_call_with_its_own_limit_ends_by_itself(usable):
    """monitored_barrier with a timeout names the missing rank itself; no alarm takes that from the learner."""

    def monitored(rank, world_size):
        if rank == 0:
            return str(raised(RuntimeError, dist.monitored_barrier, timeout=timedelta(seconds=LATER)))

    assert "failed to pass monitoredBarrier in 800 ms" in usable.run(monitored)[0]
    usable.heal()


def test_a_handler_on_top_of_a_wait_is_no_deadlock(usable):
    """A rank that waits for any source runs the handler of a signal meanwhile: it does not wait then."""

    def program(rank, world_size):
        if rank == 0:
            signal.signal(signal.SIGALRM, pause_and_send)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            dist.recv(torch.empty(2))
        elif rank == 1:
            dist.recv(torch.empty(2), src=0)
            dist.send(torch.ones(2), dst=0)

    usable.run(program)
