"""Programs that work on gloo, and what the portability report says of them."""

import threading

import pytest
import torch
import torch.distributed as dist

from distlab.notebook import cell, checked
from tests.cluster.conftest import FOUR, px

CLUSTER = FOUR


def one():
    return torch.ones(1)


# --- what works on NCCL as well ---


def collectives(rank, n):
    dist.all_reduce(one(), op=dist.ReduceOp.MAX)
    dist.barrier()
    dist.all_reduce(one(), async_op=True).wait()
    outputs = [one() for _ in range(n)]
    dist.gather(one(), outputs if rank == 0 else None)
    dist.scatter(one(), outputs if rank == 0 else None)
    dist.all_to_all(outputs, [one() for _ in range(n)])
    dist.all_reduce(torch.ones(2, dtype=torch.complex64))
    dist.all_gather_object([None] * n, rank)


def a_ring(rank, n):
    for _ in range(3):
        sent = dist.isend(one(), (rank + 1) % n)
        dist.recv(one(), (rank - 1) % n)
        sent.wait()


def exchange_in_a_batch(rank, n):
    dist.barrier(device_ids=[0])
    peer = rank ^ 1
    both = [dist.P2POp(dist.isend, one(), peer), dist.P2POp(dist.irecv, one(), peer)]
    for _ in range(2):
        for work in dist.batch_isend_irecv(both):
            work.wait()


def tags_in_order(rank, n):
    for tag in (3, 5, 3):
        if rank == 0:
            dist.send(one(), 1, tag=tag)
        elif rank == 1:
            dist.recv(one(), 0, tag=tag)


def groups_in_order(rank, n):
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for _ in range(3):
        works = [
            dist.all_reduce(one(), group=rows[rank // 2], async_op=True),
            dist.all_reduce(one(), group=columns[rank % 2], async_op=True),
        ]
        for work in works:
            work.wait()


def threads_with_groups(rank, n):
    groups = [dist.new_group(range(n)) for _ in range(2)]
    dist.all_reduce(one(), group=groups[0])
    thread = threading.Thread(target=lambda: dist.all_reduce(one(), group=groups[1]))
    thread.start()
    thread.join()


def futures(rank, n):
    future = dist.all_reduce(one(), async_op=True).get_future()
    future.then(lambda done: done.value()[0] / n).wait()


def polled(rank, n):
    work = dist.all_reduce(one(), async_op=True)
    while not work.is_completed():
        pass


def data_parallel(rank, n):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    dist.barrier()  # DDP has used the group
    model(torch.ones(1, 2)).sum().backward()


RIGHT = [
    *(collectives, a_ring, exchange_in_a_batch, tags_in_order, groups_in_order),
    *(threads_with_groups, futures, polled, data_parallel),
]


# --- what does not, or may not ---


def from_any_source(rank, n):
    for _ in range(n - 1):
        if rank == 0:
            dist.recv(one())
    if rank:
        dist.send(one(), 0)


def monitored(rank, n):
    dist.monitored_barrier()


def coalesced(rank, n):
    dist.all_gather_coalesced([[one()] for _ in range(n)], [one()])


def bitwise(rank, n):
    dist.all_reduce(torch.ones(1, dtype=torch.int32), op=dist.ReduceOp.BOR)


def short_message(rank, n):
    if rank == 0:
        dist.send(torch.ones(1, dtype=torch.int16), 1)
    elif rank == 1:
        dist.recv(torch.ones(1, dtype=torch.int16), 0)


def sparse(rank, n):
    dist.all_reduce(torch.eye(2).to_sparse())


def first_barrier(rank, n):
    dist.barrier()


def left(rank, n):
    works = [dist.all_reduce(one(), async_op=True) for _ in range(2)]
    works[0].wait()
    dist.barrier()


def objects(rank, n):
    for epoch in range(3):
        dist.all_gather_object([None] * n, epoch)
        dist.broadcast_object_list([epoch], 0)


def two_threads(rank, n):
    dist.all_reduce(one())
    thread = threading.Thread(target=lambda: dist.all_reduce(one()))
    thread.start()
    thread.join()


def batch_of_some(rank, n):
    group = dist.new_group(range(n))
    if rank < 2:
        both = [dist.P2POp(dist.isend, one(), 1 - rank, group)]
        both += [dist.P2POp(dist.irecv, one(), 1 - rank, group)]
        for work in dist.batch_isend_irecv(both):
            work.wait()


def swapped_tags(rank, n):
    works = []
    if rank == 0:
        works = [dist.isend(one(), 1, tag=7), dist.isend(one(), 1, tag=9)]
    elif rank == 1:
        works = [dist.irecv(one(), 0, tag=9), dist.irecv(one(), 0, tag=7)]
    for work in works:
        work.wait()


def both_send_first(rank, n):
    if rank < 2:
        for work in [dist.isend(one(), 1 - rank), dist.irecv(one(), 1 - rank)]:
            work.wait()


def groups_in_a_circle(rank, n):
    """Three groups of two ranks: no two ranks share two groups."""
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
    own = {0: (0, 2), 1: (1, 0), 2: (2, 1), 3: ()}[rank]
    for work in [dist.all_reduce(one(), group=groups[k], async_op=True) for k in own]:
        work.wait()


def nccl_by_name(rank, n):
    """As `distlab run --backend gloo` has it."""
    from distlab.rank.log import LOG

    group = dist.new_group(range(n))
    LOG.nccl_groups.add(group.group_name)
    dist.all_reduce(one(), group=group)
    dist.all_reduce(one())


CERTAIN, MAY = "Does not work on NCCL:", "May not work on NCCL:"
FINDINGS = [
    (from_any_source, CERTAIN, "recv from any source", "rank 0 ", "3 times"),
    (monitored, CERTAIN, "monitored_barrier", "ranks 0-3 "),
    (coalesced, CERTAIN, "all_gather_coalesced", "ranks 0-3 "),
    (bitwise, CERTAIN, "ReduceOp.BAND, BOR or BXOR", "ranks 0-3 "),
    (short_message, CERTAIN, "a tensor of type int16", "rank 0 ", "rank 1 "),
    (sparse, CERTAIN, "a sparse tensor", "ranks 0-3 "),
    (first_barrier, MAY, "barrier as the first call of its group", "ranks 0-3 "),
    (left, MAY, "a call whose Work nobody waited for", "ranks 0-3 "),
    (objects, MAY, "objects sent in a loop", "all_gather_object([None] * n, epoch)   3 times"),
    (two_threads, MAY, "a group that several threads use", "target=lambda"),
    (batch_of_some, MAY, "batch_isend_irecv as the first call of a group", "ranks 0-1 "),
    (swapped_tags, CERTAIN, "messages that are received in another order", "rank 1  "),
    (both_send_first, MAY, "two ranks that both send first, or both receive first", "ranks 0-1 "),
    (groups_in_a_circle, MAY, "collectives of several groups in different orders", "rank 2 "),
    (nccl_by_name, MAY, "tensors on the CPU in a group for which the program names NCCL"),
]


@pytest.fixture
def report(cluster, monkeypatch):
    """The report of a program, which runs on ranks whose group is new."""
    reports = []

    def keep(replies):
        reports.append(checked.portability_of(replies))
        return reports[-1]

    def run(program):
        cluster.ranks.rebuild()
        cluster.run(program, check=True)
        return reports[-1]

    monkeypatch.setattr(cell, "portability_of", keep)
    return run


def test_right_programs_have_nothing_in_their_reports(report, capfd):
    """The report has one line for who asks, and a cell shows none."""
    for program in RIGHT:
        found = report(program)
        assert found.findings == (), program.__name__
    assert report(a_ring).words() == "Nothing that NCCL lacks was seen: 24 calls of 2 kinds."
    assert "NCCL" not in capfd.readouterr().err


def test_each_finding_of_a_program(report, capfd):
    """It is one; the report says in which line, on which ranks, how often, and where to read it."""
    for program, heading, *words in FINDINGS:
        found = report(program)
        text = found.words()
        name = program.__name__
        assert len(found.findings) == 1, (name, text)
        assert text.startswith(heading), (name, text)
        assert "   test_portability.py:" in text, text
        assert "\n  https://" in text, text
        for word in words:
            assert word in text, (name, text)
        assert text in capfd.readouterr().err


def test_a_run_without_checks_sees_nothing(cluster, capfd):
    cluster.run(monitored)

    def watcher(rank, n):
        from distlab.rank.plugins import PLUGINS

        return PLUGINS.watcher

    assert cluster.run(watcher) == [None] * 4
    assert "NCCL" not in capfd.readouterr().err


def test_a_cell_is_reported_by_its_own_lines(cluster, capfd):
    px(cluster, "dist.monitored_barrier()", check=True)
    assert "ranks 0-3   line 2   dist.monitored_barrier()" in capfd.readouterr().err
