"""Correct programs in which something hidden will act: none is a deadlock. Runs real ranks."""

import _thread
import asyncio
import queue
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

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


def a_task_inside_another_wait():
    asyncio.get_running_loop().kept = asyncio.ensure_future(asyncio.wait_for(wait_and_send(), 60))


def an_alarm():
    signal.signal(signal.SIGALRM, send)
    signal.setitimer(signal.ITIMER_REAL, LATER)


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


def test_a_group_with_a_short_timeout_ends_by_itself(usable):
    """With a limit of seconds an error is expected; with minutes it is a deadlock."""

    def impatient(rank, world_size):
        group = dist.new_group(timeout=timedelta(seconds=2))
        if rank < 2:
            return str(raised(RuntimeError, dist.recv, torch.zeros(1), src=1 - rank, group=group))

    first, second, third = usable.run(impatient)
    # one may be told that the other has given up
    assert "Timed out waiting 2000ms" in first + second
    assert third is None
    usable.heal()


def test_a_call_with_its_own_limit_ends_by_itself(usable):
    """monitored_barrier with a timeout names the missing rank itself."""

    def monitored(rank, world_size):
        if rank == 0:
            return str(
                raised(RuntimeError, dist.monitored_barrier, timeout=timedelta(seconds=LATER))
            )

    assert "failed to pass monitoredBarrier in 800 ms" in usable.run(monitored)[0]
    usable.heal()
