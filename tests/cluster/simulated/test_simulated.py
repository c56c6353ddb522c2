"""Real ranks on simulated machines: the same results as on gloo, and times that are exact."""

import sys

import pytest
import torch
import torch.distributed as dist

import distlab
from distlab.measure.timing import measure
from distlab.simulated.network import Device, Link, Network
from distlab_course import algorithms
from tests.cluster.backend_programs import PROGRAMS
from tests.cluster.conftest import dies, outcome
from tests.cluster.zoo_of_messages import a_recv_without_a_send, from_any_source_but_nobody_sends
from tests.refused import raised

ALPHA = 5e-6
BETA = 1 / 25e9
NETWORK = Network("5 us", "25 GB/s", algorithms={"all_reduce": "ring"})


pytestmark = pytest.mark.usefixtures("usable")


@pytest.fixture(scope="module")
def cluster(nothing_left, on_gloo):
    """Three ranks on simulated machines."""
    with distlab.Cluster(3, timeout=60) as cluster:
        with cluster.network(NETWORK):
            yield cluster
        assert cluster.run(lambda rank, world_size: dist.get_backend()) == ["gloo"] * 3
        with pytest.raises(
            distlab.ClusterError, match=r"^This cluster has no virtual clock, because it runs in"
        ):
            cluster.clock()


def seconds(cluster, fn, *args, **kwargs):
    """Virtual seconds that a cell takes."""
    before = cluster.clock()
    cluster.run(fn, *args, **kwargs)
    return cluster.clock() - before


def close(formula):
    return pytest.approx(formula, rel=1e-9)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_it_gives_on_gloo(on_gloo, cluster, name):
    """Collectives, messages, groups, async Work, DDP and FSDP2; and time passes."""
    before = cluster.clock()
    assert outcome(cluster, PROGRAMS[name]) == on_gloo[name]
    assert cluster.clock() > before or isinstance(on_gloo[name], str)


def reduce_by(rank, world_size, name, size):
    tensor = torch.full((size // 4,), float(rank))
    algorithms.ALL_REDUCE[name](tensor)
    assert tensor[0].item() == sum(range(world_size))


def test_a_collective_takes_what_its_formula_says_and_less_behind_computing(cluster):
    formula = algorithms.cost("ring", 3 << 16, 3, ALPHA, BETA)

    def overlapped(rank, world_size, computing):
        work = dist.all_reduce(torch.ones(3 << 14), async_op=True)
        distlab.compute(computing)
        work.wait()

    assert seconds(cluster, overlapped, 0.0) == close(formula)
    assert seconds(cluster, overlapped, 1e-3) == close(1e-3)


def by_torch(rank, world_size, name):
    tensor = torch.ones(3 << 14)
    parts = [tensor, tensor, tensor] if rank == 1 else None
    if name == "barrier":
        dist.barrier()
    elif name == "all_reduce":
        dist.all_reduce(torch.ones(()))
    elif name == "gather":
        dist.gather(tensor, parts, 1)
    elif name == "scatter":
        dist.scatter(tensor, parts, 1)
    else:
        getattr(dist, name)(tensor, 1)


def by_group(rank, world_size, name):
    """The same, by the group's own method, which needs no options."""
    group = dist.group.WORLD
    tensor = torch.ones(3 << 14)
    parts = [tensor, tensor, tensor] if rank == 1 else []
    if name == "barrier":
        work = group.barrier()
    elif name == "all_reduce":
        work = group.allreduce(torch.ones(()))
    elif name == "gather":
        work = group.gather(parts, tensor, 1)
    elif name == "scatter":
        work = group.scatter(tensor, parts, 1)
    else:
        work = getattr(group, name)(tensor, root=1)
    work.wait()


@pytest.mark.parametrize(
    "name", ["broadcast", "reduce", "gather", "scatter", "all_reduce", "barrier"]
)
def test_a_method_of_the_group_takes_what_torchs_function_takes(cluster, name):
    takes = seconds(cluster, by_torch, name)
    assert takes > 0
    assert seconds(cluster, by_group, name) == close(takes)


def test_a_cell_begins_when_the_one_before_has_ended_on_all_ranks(cluster):
    """Also where a cell runs on some ranks only."""

    def straggle(rank, world_size):
        distlab.compute(1e-3 * rank)

    assert seconds(cluster, straggle) == close(2e-3)
    assert seconds(cluster, straggle, ranks=[1]) == close(1e-3)


def train(rank, world_size):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.03)
    for _ in range(3):
        ddp(torch.ones(4, 64)).sum().backward()


def test_training_takes_the_same_time_on_every_run(cluster):
    """Counted operations, buckets from C++ and a straggler: equal to the bit, and longer."""
    device = Device(flops="1 GFLOP/s")
    slow = Network("5 us", "25 GB/s", device=device, stragglers={1: 2.0})
    found = {}
    for network in (slow, slow, Network("5 us", "25 GB/s", device=device)):
        with cluster.network(network):
            cluster.run(train)
            found.setdefault(str(network.stragglers), set()).add(cluster.clock())
    assert [len(times) for times in found.values()] == [1, 1]
    with_straggler, without = (times.pop() for times in found.values())
    # forward and both halves of backward, for 8 layers but the first one's input, of 4 x 64 x 64
    # multiply-adds each
    computing = 3 * (2 * 4 * 64 * 64) * (3 * 8 - 1) / 1e9
    assert computing < without < 1.2 * computing < with_straggler


def chain(rank, world_size, completed):
    """A product of matrices after an all-reduce, then another all-reduce and product."""
    matrix = torch.ones(64, 64)
    work = dist.all_reduce(torch.ones(3 << 14), async_op=True)
    while completed and not work.is_completed():
        pass

    def go_on(future):
        dist.all_reduce(torch.ones(3 << 14), async_op=True).get_future().wait()
        return (matrix @ future.value())[0, 0].item()

    product = work.get_future().then(lambda future: matrix @ matrix)
    matrix @ matrix
    return product.then(go_on).wait()


def test_callbacks_take_the_same_time_on_whichever_thread_they_run(cluster):
    """On gloo's at the end of the operation, or on the program's own if it has ended."""
    device = Device("1 GFLOP/s")
    network = Network("5 us", "25 GB/s", algorithms={"all_reduce": "ring"}, device=device)
    with cluster.network(network):
        takes = 2 * (algorithms.cost("ring", 3 << 16, 3, ALPHA, BETA) + 2 * 64**3 / 1e9)
        for completed in (False, True) * 3:
            assert seconds(cluster, chain, completed) == close(takes)


def test_an_error_in_a_callback_of_a_hook_is_the_one_that_is_shown(cluster):
    def program(rank, world_size):
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))

        def divide_by_0(state, bucket):
            in_flight = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return in_flight.then(lambda future: 1 / 0)

        ddp.register_comm_hook(None, divide_by_0)
        ddp(torch.ones(1, 4)).sum().backward()

    with pytest.raises(distlab.RanksFailed, match="ZeroDivisionError: division by zero"):
        cluster.run(program)


def test_a_callback_that_has_not_begun_goes_on_in_a_later_cell(cluster):
    def begin(rank, world_size):
        main = sys.modules["__main__"]
        main.group = dist.new_group()
        if rank != 1:
            work = dist.all_reduce(torch.ones(3 << 14), group=main.group, async_op=True)
            main.future = work.get_future().then(lambda _: distlab.compute(1e-3))

    def end(rank, world_size):
        main = sys.modules["__main__"]
        if rank == 1:
            dist.all_reduce(torch.ones(3 << 14), group=main.group)
        else:
            main.future.wait()

    assert seconds(cluster, begin) == 0.0
    assert seconds(cluster, end) == close(algorithms.cost("ring", 3 << 16, 3, ALPHA, BETA) + 1e-3)


def test_what_some_ranks_measure_is_their_own_call(cluster):
    """Not what they did before, of which they know only their half."""

    def fn(rank, world_size):
        pair = dist.new_group([0, 1])
        dist.barrier()
        if rank >= 2:
            return None

        def broadcast(tensor):
            dist.broadcast(tensor, src=0, group=pair)

        return measure(broadcast, torch.zeros(1000), group=pair).seconds

    before = cluster.clock()
    message = ALPHA + 4000 * BETA
    assert cluster.run(fn) == [close(message), close(message), None]
    assert cluster.clock() - before == close(2 * ALPHA + message)


def test_a_trace_is_of_virtual_time(cluster):
    """Messages while they travel, computing beside a collective, and waits; exact."""

    def program(rank, world_size):
        reduce_by(rank, world_size, "ring", 3 << 16)
        work = dist.all_reduce(torch.ones(3 << 14), async_op=True)
        distlab.compute(1e-5 * (rank + 1))
        work.wait()

        if rank == 0:
            dist.irecv(torch.empty(1), 1)

    with cluster.trace() as trace:
        cluster.run(program)
    cluster.heal()
    step = ALPHA + BETA * (1 << 16)
    whole = algorithms.cost("ring", 3 << 16, 3, ALPHA, BETA)
    words = "3 ranks, 5 µs, 25 GB/s, 13 messages, 1 without a partner, 1 collective, "
    assert repr(trace).startswith(f"Trace: simulated: {words}")
    one_of_each_step = trace.messages[:12:3]
    assert [message.left for message in one_of_each_step] == close([k * step for k in range(4)])
    arrived = [message.arrived for message in one_of_each_step]
    assert arrived == close([(k + 1) * step for k in range(4)])
    (collective,) = trace.collectives
    assert [event.start for event in collective.events] == close([whole] * 3)
    assert [event.end for event in collective.events] == close([2 * whole] * 3)
    of_rank_0 = [event for event in trace.events if event.rank == 0]
    after_the_ring = [event for event in of_rank_0 if event.start >= 0.99 * whole]
    assert [(event.kind, event.op) for event in after_the_ring[:3]] == [
        ("collective", "all_reduce"),
        ("compute", "compute"),
        ("wait", "all_reduce"),
    ]
    assert trace.seconds == close(max(2 * whole, whole + 3e-5))


FAULTS = {
    a_recv_without_a_send: distlab.DeadlockError,
    from_any_source_but_nobody_sends: distlab.DeadlockError,
    dies: distlab.RankDied,
}


@pytest.mark.parametrize(("program", "error"), FAULTS.items())
def test_after_a_fault_the_clock_begins_anew_on_the_same_machines(cluster, program, error):
    with pytest.raises(error):
        cluster.run(program)
    assert cluster.clock() == 0.0
    formula = algorithms.cost("ring", 3 << 16, 3, ALPHA, BETA)
    assert seconds(cluster, reduce_by, "ring", 3 << 16) == close(formula)


@pytest.mark.parametrize(
    ("words", "network"),
    [
        ("a Network", "fast"),
        ("of 3 ranks", Network(hosts=[2, 2], inside=Link(0, 1), between=Link(0, 1))),
    ],
)
def test_a_network_that_does_not_fit_is_refused(cluster, words, network):
    with (
        pytest.raises(distlab.errors.DistlabError, match=f"^network must be {words}, "),
        cluster.network(network),
    ):
        pass


def test_a_network_to_which_the_ranks_cannot_move_leaves_them_where_they_are(cluster, monkeypatch):
    """A rank is busy for too long: the block is not entered, and the machines are those before."""
    before = cluster.simulated
    monkeypatch.setattr("distlab.notebook.seconds.BUILD", 0.1)
    busy = cluster.client[0].execute("__import__('time').sleep(0.5)", block=False)
    with (
        pytest.raises(distlab.ClusterError, match="an earlier cell is still running on rank 0"),
        cluster.network(Network("1 s", "1 GB/s")),
    ):
        pass
    monkeypatch.undo()
    busy.wait()
    assert cluster.simulated == before
    assert seconds(cluster, reduce_by, "ring", 3 << 16) < 1


def test_a_network_that_cannot_be_left_at_once_is_left_before_the_next_cell(cluster, monkeypatch):
    """As long as a rank is busy, the group cannot be rebuilt."""
    before = cluster.simulated
    elsewhere = cluster.network(Network("1 s", "1 GB/s"))
    elsewhere.__enter__()
    assert seconds(cluster, reduce_by, "ring", 3 << 16) > 1
    busy = cluster.client[0].execute("__import__('time').sleep(0.5)", block=False)
    monkeypatch.setattr("distlab.notebook.seconds.BUILD", 0.1)
    with pytest.raises(distlab.ClusterError, match="an earlier cell is still running on rank 0"):
        elsewhere.__exit__(None, None, None)
    monkeypatch.undo()
    busy.wait()
    assert cluster.simulated == before
    assert seconds(cluster, reduce_by, "ring", 3 << 16) < 1


def many_small_sums_and_a_recv(rank, world_size):
    for _ in range(40):
        dist.barrier(async_op=True)
    if rank == 0:
        dist.recv(torch.ones(1), src=1)


def test_more_small_works_than_are_kept_hide_no_deadlock(cluster, quick_watch):
    """Nobody waits for them: they are kept, and what waits is still found."""
    error = raised(distlab.DeadlockError, cluster.run, many_small_sums_and_a_recv)
    assert str(error).startswith(
        "Rank 0 waits for a message from rank 1, which has finished without sending it."
    )
