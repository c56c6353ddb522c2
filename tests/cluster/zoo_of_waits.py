"""More broken programs: waits that no call of a group on the main thread shows."""

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.cluster.zoo import breaks, ones


@breaks(2, on=[0])
def a_thread_that_is_joined_waits_alone(rank, n):
    """Rank 0 waits in all_reduce for rank"""
    thread = threading.Thread(target=lambda: dist.all_reduce(ones()))
    thread.start()
    thread.join()


@breaks(2, on=[0])
def a_result_of_a_pool_that_never_comes(rank, n):
    """Rank 0 waits for a message from rank 1, which has finished without sending it."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(dist.recv, ones(), 1).result()


@breaks(2)
def a_queue_that_a_waiting_thread_was_to_fill(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    import queue

    batches = queue.Queue()

    def load():
        dist.recv(ones(), src=1 - rank)
        batches.put(1)

    threading.Thread(target=load, daemon=True).start()
    batches.get()


@breaks(3, error="RankError")
def groups_made_in_another_order(rank, n):
    """every rank must call new_group, even for a group that it is not in, and in the same order."""
    for members in ([0, 1], [0, 2]) if rank != 1 else ([0, 2], [0, 1]):
        dist.new_group(members)


@breaks(3)
def tags_that_differ_from_any_source(rank, n):
    """Rank 1 sends with tag 4, but rank 0 waits for tag 5."""
    if rank == 0:
        dist.recv(ones(), tag=5)
    elif rank == 1:
        dist.send(ones(), dst=0, tag=4)


# --- with somebody who will not act ---


@breaks(2)
def an_idle_pool_of_threads(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(len, "x").result()
        dist.recv(ones(), src=(rank + 1) % n)


@breaks(3)
def a_callback_that_asked_for_its_thread(rank, n):
    """3 of 3 ranks wait for each other; nobody will send."""
    time.sleep(0.2 * (rank == 0))
    future = dist.all_reduce(ones(), async_op=True).get_future()
    # as logging does; Python knows gloo's thread now
    future.then(lambda _: threading.current_thread().name).wait()
    dist.recv(ones(), src=(rank + 1) % n)


@breaks(3)
def processes_that_only_answer(rank, n):
    """for rank 2, which has finished without calling it"""
    batches = iter(DataLoader(range(8), num_workers=1, multiprocessing_context="fork"))
    child = subprocess.Popen(["sleep", "60"])
    try:
        if rank < 2:
            dist.all_reduce(ones())
        return len(list(batches))
    finally:
        child.kill()
        # an iterator that is collected later, with the exception, keeps the rank for 5 s
        del batches


@breaks(2)
def a_dropped_isend_whose_sender_goes_on_to_receive(rank, n):
    """Rank 0 dropped the Work of its isend, and the message to rank 1 with it: keep the Work and
    call its wait().
    """
    if rank == 0:
        dist.isend(ones(), dst=1)
    dist.barrier()
    if rank == 0:
        dist.recv(ones(), src=1)
    else:
        dist.recv(ones(), src=0)
        dist.send(ones(), dst=0)


@breaks(2, error="RankError")
def a_group_that_one_rank_destroys(rank, n):
    """rank 1 destroyed the process group"""
    if rank == 1:
        dist.destroy_process_group()
    else:
        dist.barrier()


@breaks(2)
def a_group_with_a_timeout_of_minutes(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    dist.recv(ones(), src=1 - rank, group=dist.new_group(timeout=timedelta(seconds=50)))


@breaks(2)
def a_wait_with_a_timeout_of_minutes(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    dist.irecv(ones(), src=1 - rank).wait(timedelta(minutes=3))


@breaks(2)
def threads_that_are_left_in_recv_on_all_ranks(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    threading.Thread(
        target=dist.recv, args=(ones(), 1 - rank), kwargs={"tag": 9}, daemon=True
    ).start()
    dist.recv(ones(), src=1 - rank)


# --- names of the engine ---


@breaks(2)
def run_code(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    dist.recv(ones(), src=1 - rank)


@breaks(2, error="RankTimeout", timeout=2)
def do_apply(rank, n):
    """ranks 0-1  computing"""
    while True:
        pass
