"""Broken programs whose messages have no other end, or are in the wrong order."""

import threading
import time

import torch
import torch.distributed as dist

from tests.cluster.zoo import breaks, message, ones


@breaks(4)
def everybody_receives_first(rank, n):
    """{n} of {n} ranks wait for each other; nobody will send."""
    dist.recv(ones(), src=(rank - 1) % n)
    dist.send(ones(), dst=(rank + 1) % n)


@breaks(3)
def everybody_sends_first(rank, n):
    """{n} of {n} ranks wait for each other; nobody will receive, and a send waits for its
    receiver.
    """
    dist.send(ones(), dst=(rank + 1) % n)
    dist.recv(ones(), src=(rank - 1) % n)


@breaks(2, on=[1])
def a_recv_without_a_send(rank, n):
    """Rank 1 waits for a message from rank 0, which has finished without sending it."""
    dist.recv(ones(), src=0)


@breaks(2, on=[0])
def a_send_without_a_recv(rank, n):
    """Rank 0 sends a message to rank 1, which has finished without receiving it."""
    dist.send(ones(), dst=1)


@breaks(2)
def two_sends_one_recv(rank, n):
    """Rank 0 sends a message to rank 1, which has finished without receiving it."""
    message(rank, ones(), ones())
    if rank == 0:
        dist.send(ones(), dst=1)


@breaks(2)
def one_send_two_recvs(rank, n):
    """Rank 1 waits for a message from rank 0, which has finished without sending it."""
    message(rank, ones(), ones())
    if rank == 1:
        dist.recv(ones(), src=0)


@breaks(2)
def tags_that_differ(rank, n):
    """Rank 0 sends with tag 1, but rank 1 waits for tag 2."""
    message(rank, ones(), ones(), tags=(1, 2))


@breaks(3)
def a_message_for_somebody_else(rank, n):
    """Rank 0 sends a message to rank 2, which has finished without receiving it."""
    if rank == 0:
        dist.send(ones(), dst=2)
    elif rank == 1:
        dist.recv(ones(), src=0)


@breaks(2, on=[0])
def an_irecv_nobody_sends_to(rank, n):
    """Rank 0 waits for a message from rank 1, which has finished without sending it."""
    work = dist.irecv(ones(), src=1)
    work.wait()


@breaks(2, on=[1])
def an_isend_nobody_receives(rank, n):
    """Rank 1 sends a message to rank 0, which has finished without receiving it."""
    dist.isend(ones(), dst=0).wait()


@breaks(3, on=[0])
def from_any_source_but_nobody_sends(rank, n):
    """Rank 0 waits for a message from ranks 1-LAST, which have finished without sending it."""
    dist.recv(ones())


@breaks(3)
def sends_in_a_circle_after_messages_from_any_source(rank, n):
    """2 of {n} ranks wait for each other; nobody will receive,
    and a send waits for its receiver.
    """
    if rank == 0:
        for _ in range(n - 1):
            dist.recv(ones())
    else:
        dist.send(ones(), dst=0)
    dist.barrier()  # else a message of the circle could be taken for one of the first
    if rank < 2:
        dist.send(ones(), dst=1 - rank)


@breaks(2)
def batches_without_a_partner(rank, n):
    """2 of 2 ranks wait for each other; nobody will send."""
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, ones(), 1 - rank)]):
        work.wait()


@breaks(2, on=[0])
def an_object_nobody_receives(rank, n):
    """Rank 0 sends a message to rank 1, which has finished without receiving it."""
    dist.send_object_list([{"a": 1}], dst=1)


@breaks(3, on=[1, 2])
def a_chain_that_ends_at_a_finished_rank(rank, n):
    """Rank 1 waits for a message from rank 0, which has finished without sending it."""
    dist.recv(ones(), src=rank - 1)


# --- messages behind one whose Work was dropped ---


@breaks(2)
def a_dropped_isend_before_another_tag(rank, n):
    """Rank 0 dropped the Work of its isend, and the message to rank 1 with it: keep the Work and
    call its wait().
    """
    if rank == 0:
        for tag in range(2):
            work = dist.isend(ones(), dst=1, tag=tag)
        dist.barrier()
        work.wait()
    else:
        dist.barrier()  # the first Work is gone before its recv is there
        for work in [dist.irecv(ones(), src=0, tag=tag) for tag in range(2)]:
            work.wait()


@breaks(2)
def a_dropped_isend_before_a_send_of_its_kind(rank, n):
    """Rank 0 dropped the Work of its isend, and the message to rank 1 with it: keep the Work and
    call its wait().
    """
    if rank == 0:
        dist.isend(ones(), dst=1)
    dist.barrier()
    message(rank, ones(), ones())


def block(rank):
    """Rank 0 drops the Work of its isend, and knows that rank 1 waits for the message: what it
    sends now is blocked.

    Returns:
        what must be kept.
    """
    if rank == 0:
        dist.isend(ones(), dst=1)
        after = dist.irecv(ones(), src=1, tag=9)
    dist.barrier()
    if rank == 0:
        return after.wait()
    received = dist.irecv(ones(), src=0)
    dist.send(ones(), dst=0, tag=9)  # arrives after the news of the recv
    return received


@breaks(2)
def a_dropped_isend_before_a_message_to_its_sender(rank, n):
    """Rank 0 dropped the Work of its isend, and the message to rank 1 with it: keep the Work and
    call its wait().
    """
    kept = block(rank)
    if rank == 0:
        dist.recv(ones(), src=1, tag=1)
    else:
        dist.send(ones(), dst=0, tag=1)
        kept.wait()


@breaks(2)
def a_dropped_isend_before_a_broadcast(rank, n):
    """Rank 0 dropped the Work of its isend, and the message to rank 1 with it: keep the Work and
    call its wait().
    """
    kept = block(rank)
    if rank == 0:
        # rank 1 is in the broadcast: then gloo's thread waits for a send, which closing does not
        # end
        time.sleep(0.3)
    dist.broadcast(ones(), src=0)
    if rank == 1:
        kept.wait()


# --- messages that come after the Work of their irecv was dropped ---


@breaks(2)
def a_dropped_irecv_before_another_tag(rank, n):
    """Rank 0 dropped the Work of its irecv (zoo_of_messages.py:"""
    if rank == 0:
        dist.irecv(ones(), src=1)
        dist.barrier()
        dist.recv(ones(), src=1, tag=1)
    else:
        dist.barrier()
        dist.isend(ones(), dst=0)  # is sent at once, whatever becomes of its Work
        dist.send(ones(), dst=0, tag=1)


def lose(rank):
    """Rank 0 drops the Work of its irecv, and then knows that its message is on the way: gloo does
    not read on.
    """
    if rank == 0:
        dist.irecv(ones(), src=1)
    dist.barrier()
    if rank == 0:
        dist.recv(ones(), src=2)
    elif rank == 1:
        dist.send(ones(), dst=0)
        dist.send(ones(), dst=2)
    elif rank == 2:
        dist.recv(ones(), src=1)
        dist.send(ones(), dst=0)


@breaks(3)
def a_dropped_irecv_before_a_message_to_its_sender(rank, n):
    """, and the message from rank 1 with it: keep the Work and call its wait()."""
    lose(rank)
    message(rank, ones(), ones())


@breaks(3)
def a_dropped_irecv_before_a_collective(rank, n):
    """Rank 0 dropped the Work of its irecv (zoo_of_messages.py:"""
    lose(rank)
    dist.all_reduce(ones())


@breaks(3, error="RankError")
def a_dropped_irecv_before_a_rank_that_raises(rank, n):
    """rank 2 raised ValueError: not this time"""
    lose(rank)
    if rank == 2:
        raise ValueError("not this time")
    if rank == 0:
        dist.recv(ones(), src=1, tag=1)
    elif rank == 1:
        dist.send(ones(), dst=0, tag=1)


# --- right ones ---


def an_irecv_that_is_dropped_when_its_message_is_there(rank, n):
    """It has received, and blocks nothing."""
    got = torch.zeros(2)
    if rank == 0:
        work = dist.irecv(got, src=1)
    dist.barrier()
    if rank == 0:
        while not got.all():
            pass
        del work
    elif rank == 1:
        dist.send(ones(), dst=0)
    large = torch.ones(1_000_000)
    for _ in range(4):
        dist.all_reduce(large)
    message(rank, ones(), ones())
    if rank == 0:
        dist.recv(ones(), src=1)
    elif rank == 1:
        dist.send(ones(), dst=0)
    return rank > 0 or got.tolist() == [1.0, 1.0]


def sends_whose_works_are_kept(rank, n):
    works = [dist.isend(ones(), dst=(rank + 1) % n, tag=tag) for tag in range(8)]
    works += [dist.irecv(ones(), src=(rank - 1) % n, tag=tag) for tag in reversed(range(8))]
    for work in works:
        work.wait()
    return True


def a_wait_for_a_send_by_another_thread(rank, n):
    if rank == 0:
        waits = [
            threading.Thread(target=dist.isend(ones(), dst=1, tag=tag).wait) for tag in range(3)
        ]
        for thread in waits:
            thread.start()
        dist.send(ones(), dst=1, tag=3)
        for thread in waits:
            thread.join()
    elif rank == 1:
        for tag in reversed(range(4)):
            dist.recv(ones(), src=0, tag=tag)
    return True
