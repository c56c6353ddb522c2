"""What a cell begins and nobody waits for is reported, and the next group is clean."""

import pathlib
import sys

import pytest
import torch
import torch.distributed as dist

import distlab
from distlab.rank.message_counter import MOST_KINDS
from tests.cluster.conftest import sum_of_ranks
from tests.refused import raised

CLUSTER = {"n": 3, "timeout": 20}
pytestmark = pytest.mark.usefixtures("quick_watch")


def ones():
    return torch.ones(2)


def send_and_forget(rank, world_size):
    if rank == 0:
        dist.isend(ones(), dst=1)


def receive_and_forget(rank, world_size):
    if rank == 1:
        dist.irecv(ones(), src=2)


def receive_from_any_and_forget(rank, world_size):
    if rank == 1:
        dist.irecv(ones())


def add_and_forget(rank, world_size):
    if rank > 0:
        dist.all_reduce(ones(), async_op=True)


LEFT = {
    send_and_forget: "rank 0: isend(dst=1), test_left_behind.py:{}, was never received",
    receive_and_forget: "rank 1: irecv(src=2), test_left_behind.py:{}, nothing was sent for it",
    receive_from_any_and_forget: (
        "rank 1: irecv(src=any), test_left_behind.py:{}, perhaps nothing was sent for it"
    ),
    add_and_forget: "rank 1: all_reduce(), test_left_behind.py:{}, was not called by rank 0",
}


def exchange(rank, world_size):
    """A right cell that a stray operation would spoil."""
    given, got = torch.full((2,), float(rank)), ones()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, given, (rank + 1) % world_size),
            dist.P2POp(dist.irecv, got, (rank - 1) % world_size),
        ]
    )
    for work in works:
        work.wait()
    total = ones()
    dist.all_reduce(total)
    return got.tolist() + total.tolist()


@pytest.mark.parametrize(
    ("program", "words"), LEFT.items(), ids=[program.__name__ for program in LEFT]
)
def test_it_is_reported_and_the_next_cell_is_clean(usable, capsys, program, words):
    usable.run(exchange)  # a recv from any source may have taken one of these messages
    usable.run(program)
    shown = capsys.readouterr().err
    assert words.format(program.__code__.co_firstlineno + 2) in shown
    assert "The process group is rebuilt" in shown
    assert usable.run(exchange) == [
        [2.0, 2.0, 3.0, 3.0],
        [0.0, 0.0, 3.0, 3.0],
        [1.0, 1.0, 3.0, 3.0],
    ]
    assert capsys.readouterr().err == ""


def meet_without_waiting(rank, world_size):
    """The Works are alive until the other side has come."""
    sent = dist.isend(ones(), dst=1) if rank == 0 else None
    if rank == 1:
        dist.recv(ones(), src=0)
    met = dist.barrier(async_op=True)
    dist.barrier()
    return (sent, met) is None


def keep(rank, world_size):
    if rank == 0:
        sys.modules["__main__"].work = dist.isend(torch.full((2,), 5.0), dst=1)


def wait_for_it(rank, world_size):
    got = ones()
    if rank == 0:
        work.wait()  # noqa: F821 - the name of the rank
    if rank == 1:
        dist.recv(got, src=0)
    return got.tolist()


def test_what_has_met_or_is_kept_is_not_reported(usable, capsys):
    usable.run(meet_without_waiting)
    usable.run(keep)
    usable.push({"unrelated": 1})
    assert usable.run(wait_for_it)[1] == [5.0, 5.0]
    assert capsys.readouterr().err == ""


def receive_once_too_often(rank, world_size):
    if rank == 2:
        dist.recv(ones(), src=1)


def test_a_kept_one_is_named_when_a_later_cell_cannot_go_on(usable):
    usable.run(keep)
    said = str(raised(distlab.DeadlockError, usable.run, receive_once_too_often))
    assert "rank 0: isend(dst=1), test_left_behind.py:" in said
    assert "of an earlier cell, was not waited for" in said
    usable.run(lambda rank, world_size: sys.modules["__main__"].__dict__.pop("work", None) and None)


def a_pipeline_of(tags):
    """The middle stage of three has two kinds of messages for each tag."""

    def stages(rank, world_size):
        works = [dist.irecv(ones(), src=0, tag=tag) for tag in range(tags)] if rank == 1 else []
        dist.barrier()
        for tag in range(tags):
            if rank == 0:
                dist.isend(ones(), dst=1, tag=tag)
            elif rank == 1:
                works[tag].wait()
                dist.send(ones(), dst=2, tag=tag)
            else:
                dist.recv(ones(), src=1, tag=tag)
        dist.barrier()
        return "all received"

    return stages


MANY_TAGS = [40, MOST_KINDS // 2 + 50]


@pytest.mark.parametrize("tags", MANY_TAGS)
def test_a_pipeline_with_many_tags_leaves_nothing(usable, capsys, tags):
    """However many kinds of messages a stage has, and whatever it has forgotten of them."""
    assert usable.run(a_pipeline_of(tags)) == ["all received"] * 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("tags", MANY_TAGS)
def test_a_deadlock_after_many_tags_is_proven(usable, tags):
    """What nothing was forgotten of is judged as ever."""

    def then_sums(rank, world_size):
        a_pipeline_of(tags)(rank, world_size)
        if rank > 0:
            dist.all_reduce(ones())

    assert "for rank 0, which has finished" in str(
        raised(distlab.DeadlockError, usable.run, then_sums)
    )


def a_dropped_isend_whose_recv_was_there(rank, world_size):
    """It is sent at once, and blocks nothing, however long the next call takes."""
    got = torch.zeros(2)
    if rank == 1:
        work = dist.irecv(got, src=0)
        dist.send(ones(), dst=0, tag=1)
    elif rank == 0:
        dist.recv(ones(), src=1, tag=1)
        dist.isend(ones(), dst=1)
    if rank == 1:
        work.wait()
    large = torch.ones(4_000_000)
    for _ in range(4):
        dist.all_reduce(large)
    if rank == 0:
        dist.send(ones(), dst=1, tag=2)
    elif rank == 1:
        dist.recv(ones(), src=0, tag=2)
    return rank != 1 or got.tolist() == [1.0, 1.0]


def test_a_dropped_send_that_was_sent_is_no_reason(usable):
    """The message has arrived: the ranks wait for each other again, and nothing is proven."""
    assert usable.run(a_dropped_isend_whose_recv_was_there) == [True] * 3


def blocked_by_a_dropped_irecv(rank, world_size):
    """A program that waits for its own Work, outside torch.distributed's functions."""
    if rank == 0:
        dist.irecv(ones(), src=1)
    dist.barrier()
    if rank == 1:
        dist.send(ones(), dst=0)
    work = dist.all_reduce(ones(), async_op=True)
    work.wait()


def threads_of_gloo(rank, world_size):
    tasks = pathlib.Path("/proc/self/task").iterdir()
    return sorted(name for task in tasks if "gloo" in (name := (task / "comm").read_text()))


def test_nothing_is_left_of_a_group_that_a_dropped_irecv_has_blocked(usable):
    """gloo's thread, which would look for the memory for ever, ends; no rank is to blame."""
    usable.heal()  # a group with a dropped isend is kept for a while
    before = usable.run(threads_of_gloo)
    report = str(raised(distlab.DeadlockError, usable.run, blocked_by_a_dropped_irecv))
    assert report.startswith("Rank 0 dropped the Work of its irecv (test_left_behind.py:")
    assert "raised" not in report
    assert "Variables are kept" in report
    assert usable.run(threads_of_gloo) == before


def destroyed_before_it_begins(rank, n):
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.all_reduce(torch.ones(2), group=group, async_op=True)
        dist.destroy_process_group(group)


def test_a_checked_call_is_not_made_once_its_group_was_destroyed(usable):
    """It would hold the rank in C++; so the cell ends, and the next one runs."""
    usable.run(destroyed_before_it_begins, check=True)
    assert usable.run(sum_of_ranks) == [3.0] * 3
