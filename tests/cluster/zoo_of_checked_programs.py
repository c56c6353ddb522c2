"""Correct programs of many kinds, which test_zoo.py runs plain and checked.

Each returns True on every rank if its result is the right one. In many of them a call returns at
once: what it begins is posted later in checked mode, while torch's own C++ code, other groups and
other threads go on.
"""

import sys
import threading
import time
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed import nn as differentiable
from torch.distributed import rpc
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.cluster.zoo import new_folder
from tests.cluster.zoo_of_pipelines import BATCH
from tests.cluster.zoo_of_sharding import close, layers, mesh, rows, trained

# a name that torch has since 2.13
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def mine(rank, count=3):
    return torch.full((count,), float(rank + 1))


def total(n):
    """The sum of `mine` over the ranks."""
    return n * (n + 1) / 2


# --- collectives that return at once ---


def works_of_every_collective(rank, n):
    """Begun one after another, awaited in reverse order."""
    sums, first, gathered = mine(rank), mine(rank), [torch.empty(3) for _ in range(n)]
    part, whole, swapped = torch.empty(3), torch.empty(3 * n), torch.empty(n)
    to_root, at_root, scattered = mine(rank), [torch.empty(3) for _ in range(n)], torch.empty(3)
    works = [
        dist.all_reduce(sums, async_op=True),
        dist.broadcast(first, src=0, async_op=True),
        dist.all_gather(gathered, mine(rank), async_op=True),
        all_gather_single(whole, mine(rank), async_op=True),
        dist.reduce_scatter(part, [mine(rank) for _ in range(n)], async_op=True),
        dist.all_to_all_single(swapped, mine(rank, n), async_op=True),
        dist.reduce(to_root, dst=n - 1, async_op=True),
        dist.gather(mine(rank), at_root if rank == 1 else None, dst=1, async_op=True),
        dist.scatter(
            scattered, [mine(r) for r in range(n)] if rank == 0 else None, src=0, async_op=True
        ),
        dist.barrier(async_op=True),
    ]
    for work in reversed(works):
        work.wait()
    assert sums.tolist() == part.tolist() == [total(n)] * 3
    assert first.tolist() == [1.0] * 3
    assert torch.stack(gathered).flatten().equal(whole)
    assert whole[::3].tolist() == swapped.tolist() == [r + 1.0 for r in range(n)]
    assert rank != n - 1 or to_root.tolist() == [total(n)] * 3
    assert rank != 1 or torch.stack(at_root).flatten().equal(whole)
    return scattered.tolist() == [rank + 1.0] * 3


def futures_of_collectives(rank, n):
    """Awaited, with and without what follows them, and all at once."""
    tensors = [mine(rank) for _ in range(30)]
    dist.all_reduce(tensors[0], async_op=True).get_future().wait()
    halves = (
        dist.all_reduce(tensors[1], async_op=True)
        .get_future()
        .then(lambda future: future.value()[0] / 2)
    )
    assert halves.wait().tolist() == [total(n) / 2] * 3
    futures = [dist.all_reduce(tensor, async_op=True).get_future() for tensor in tensors[2:]]
    assert [one[0].tolist() for one in torch.futures.wait_all(futures)] == [[total(n)] * 3] * 28
    return all(future.done() for future in futures)


def futures_that_nobody_awaits(rank, n):
    """What follows them is called, here by the time that every rank has passed a barrier and the
    call is seen.
    """
    seen = threading.Event()
    dist.all_reduce(mine(rank), async_op=True).get_future().add_done_callback(lambda _: seen.set())
    dist.barrier()
    return seen.wait(20)


def futures_of_two_groups_in_another_order(rank, n):
    """A Future is there at once, whichever rank begins which call first."""
    groups = [dist.new_group(), dist.new_group()]
    sums = [mine(rank), mine(rank)]
    order = [0, 1] if rank % 2 else [1, 0]
    futures = [dist.all_reduce(sums[k], group=groups[k], async_op=True).get_future() for k in order]
    return [future.wait()[0].tolist() for future in futures] == [[total(n)] * 3] * 2


def works_that_are_polled(rank, n):
    work = dist.all_reduce(mine(rank), async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    return work.is_success() and work.exception() is None and isinstance(work, dist.Work)


def a_work_that_is_dropped_after_its_wait(rank, n):
    for _ in range(20):
        work = dist.all_reduce(mine(rank), async_op=True)
        work.wait()
        del work
    return True


def works_that_are_dropped_at_once(rank, n):
    """Every rank makes the calls, and a later one is after them."""
    for _ in range(20):
        dist.all_reduce(mine(rank), async_op=True)
    dist.barrier()
    return True


def a_message_between_a_call_and_its_wait(rank, n):
    """The others begin the collective only when the message has come."""
    sums = mine(rank)
    if rank == 0:
        work = dist.all_reduce(sums, async_op=True)
        for other in range(1, n):
            dist.send(torch.ones(1), dst=other)
    else:
        dist.recv(torch.empty(1), src=0)
        work = dist.all_reduce(sums, async_op=True)
    work.wait()
    return sums.tolist() == [total(n)] * 3


# --- what C++ begins in the same group, by itself ---


def a_barrier_that_watches_after_a_call(rank, n):
    sums = [mine(rank) for _ in range(5)]
    works = [dist.all_reduce(one, async_op=True) for one in sums]
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    for work in works:
        work.wait()
    return [one.tolist() for one in sums] == [[total(n)] * 3] * 5


def functional_collectives_after_a_call(rank, n):
    time.sleep(0.02 * rank)
    sums = mine(rank)
    work = dist.all_reduce(sums, async_op=True)
    late = functional.all_reduce(mine(rank), "sum", dist.group.WORLD)
    gathered = rows(n).full_tensor()
    work.wait()
    return [sums.tolist(), late.tolist()] == [
        [total(n)] * 3
    ] * 2 and gathered.flatten().tolist() == [*range(4 * n)]


def a_loss_that_is_averaged_during_the_backward_pass(rank, n):
    """DDP begins its collectives in C++, in the group in which the loss is under way."""
    model, losses = DDP(layers()), []
    for _ in range(4):
        time.sleep(0.01 * rank)
        loss = model(BATCH).square().mean()
        mean = loss.detach().clone()
        work = dist.all_reduce(mean, async_op=True)
        loss.backward()
        work.wait()
        losses.append(abs(mean - n * loss).item() < 1e-4)
    return all(losses) and close([p.grad / 4 for p in model.parameters()], gradients_alone())


def a_model_that_is_built_after_a_call(rank, n):
    time.sleep(0.02 * rank)
    sums = mine(rank)
    work = dist.all_reduce(sums, async_op=True)
    model = DDP(nn.BatchNorm1d(8))
    model(BATCH)
    work.wait()
    return sums.tolist() == [total(n)] * 3


def gradients_alone():
    model = layers()
    model(BATCH).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


# --- data parallel ---


def as_alone(model, **options):
    """Whether training it gives the parameters that one process gives."""
    return close(trained(model, **options), trained(layers(), **options))


def nearly_as_alone(model):
    pairs = zip(
        trained(model, make=torch.optim.SGD), trained(layers(), make=torch.optim.SGD), strict=True
    )
    return all(torch.allclose(found, expected, atol=0.01) for found, expected in pairs)


def with_hook(hook, state=None, **options):
    model = DDP(layers(), **options)
    model.register_comm_hook(state, hook)
    return model


def data_parallel(rank, n):
    return as_alone(DDP(layers()))


def data_parallel_with_a_static_graph(rank, n):
    return as_alone(DDP(layers(), static_graph=True, bucket_cap_mb=0.0001))


def replicated(rank, n):
    return as_alone(replicate(layers()))


def data_parallel_that_gathers_gradients_late(rank, n):
    model, alone = DDP(layers()), layers()
    for last in (False, True):
        with nullcontext() if last else model.no_sync():
            model(BATCH).sum().backward()
        alone(BATCH).sum().backward()
    return close([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


class Branches(nn.Module):
    """A model that uses one of its two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, batch, left):
        return (self.left if left else self.right)(batch)


def parameters_that_one_rank_does_not_use(rank, n):
    """C++ adds up, after the last bucket, which ones were used."""
    for hook in (None, default_hooks.allreduce_hook):
        model = DDP(Branches(), find_unused_parameters=True, bucket_cap_mb=0.0001)
        if hook is not None:
            model.register_comm_hook(None, hook)
        for _ in range(3):
            time.sleep(0.005 * rank)
            model(BATCH, rank == 0).sum().backward()
        alone = Branches()
        for _ in range(3):
            (alone(BATCH, True).sum() / n + alone(BATCH, False).sum() * (n - 1) / n).backward()
        if not close([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()]):
            return False
    return True


def a_hook_that_sends_half(rank, n):
    return nearly_as_alone(with_hook(default_hooks.fp16_compress_hook))


def a_hook_of_low_rank(rank, n):
    """It begins collectives in what follows its Futures. Gradients that are alike everywhere stay
    so.
    """
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=8, start_powerSGD_iter=2
    )
    return nearly_as_alone(with_hook(powerSGD_hook.powerSGD_hook, state))


def a_hook_of_ones_own(rank, n):
    def averaged(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / n)

    return as_alone(with_hook(averaged, bucket_cap_mb=0.0001))


def a_hook_that_waits(rank, n):
    def averaged(state, bucket):
        dist.all_reduce(bucket.buffer().div_(n))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    return as_alone(with_hook(averaged))


def a_hook_in_pairs_of_ranks(rank, n):
    """Its group is not the model's."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, n, 2)]

    def averaged(state, bucket):
        future = dist.all_reduce(
            bucket.buffer(), group=pairs[rank // 2], async_op=True
        ).get_future()
        return future.then(lambda done: done.value()[0] / 2)

    return as_alone(with_hook(averaged, bucket_cap_mb=0.0001))


def an_optimizer_in_the_hook(rank, n):
    """Each bucket's parameters take their step when its Future is there."""

    def step(state, bucket):
        def take(done):
            total = done.value()[0] / n
            bucket.buffer().copy_(total)
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                Steps().step_param(parameter, gradient)
            return bucket.buffer()

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(take)

    model = with_hook(step, bucket_cap_mb=0.0001)
    for _ in range(3):
        model(BATCH).square().mean().backward()
        model.zero_grad()
    return close([*model.parameters()], trained(layers(), make=torch.optim.SGD))


class Steps:
    """An optimizer of single parameters, as torch's functional ones."""

    def step_param(self, parameter, gradient):
        with torch.no_grad():
            parameter.sub_(0.1 * gradient)


def an_optimizer_in_the_backward_pass(rank, n):
    """Each parameter takes its step when its gradient has been added up."""
    model = layers()

    def step(parameter):
        dist.all_reduce(parameter.grad)
        Steps().step_param(parameter, parameter.grad / n)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        model(BATCH).square().mean().backward()
    return close([*model.parameters()], trained(layers(), make=torch.optim.SGD))


def gradients_that_are_added_up_by_hand(rank, n):
    """A hook on each parameter begins a collective in the backward pass, awaited at its end."""
    model, works = layers(), []

    def begin(parameter):
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(begin)
    model(BATCH).square().mean().backward()
    for work in works:
        work.wait()
    return close([p.grad / n for p in model.parameters()], gradients_alone())


def uneven_inputs(rank, n):
    """Ranks that have finished join in what the others do, some of it in C++."""
    for options in ({}, {"bucket_cap_mb": 0.0001}, {"find_unused_parameters": True}):
        model = DDP(layers(), **options)
        passes = 0
        with model.join():
            for _ in range(2 + rank):
                model(BATCH).sum().backward()
                passes += 1
        if passes != 2 + rank:
            return False
    return True


def uneven_inputs_with_a_hook(rank, n):
    model = with_hook(default_hooks.allreduce_hook)
    with model.join():
        for _ in range(2 + rank):
            model(BATCH).sum().backward()
    return True


def uneven_inputs_with_buffers(rank, n):
    """With a divisor that counts the ranks that are left, and batches whose statistics are sent
    round.
    """
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    with model.join(divide_by_initial_world_size=False):
        for step in range(2 + rank):
            with model.no_sync() if step % 2 else nullcontext():
                model(BATCH).sum().backward()
    return True


def uneven_inputs_and_states_in_parts(rank, n):
    model = DDP(layers())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for _ in range(2 + rank):
            optimizer.zero_grad()
            model(BATCH).sum().backward()
            optimizer.step()
    return True


def parameters_that_are_averaged_at_times(rank, n):
    model = layers()
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(BATCH * (rank + 1)).square().mean().backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        optimizer.zero_grad()
    return averager.step == 4


# --- sharded ---


def fsdp_of_the_first_kind(rank, n):
    model = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(BATCH).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    alone = nn.Sequential(*layers())
    trained(alone, steps=2, make=torch.optim.SGD)
    with FullyShardedDataParallel.summon_full_params(model):
        return close([*model.parameters()], [*alone.parameters()])


def fsdp_of_many_layers(rank, n):
    """Each layer's gather is begun before it is needed."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])
    alone = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])
    alone.load_state_dict(model.state_dict())
    for layer in model:
        fully_shard(layer)
    return close(trained(fully_shard(model)), trained(alone))


def a_checkpoint_of_shards(rank, n):
    place = [new_folder() if rank == 0 else ""]
    dist.broadcast_object_list(place)
    model = fully_shard(layers())
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=Path(place[0]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=Path(place[0]))
    model.load_state_dict(state["model"])
    return close([*model.parameters()], [*layers().parameters()])


# --- several at once, gradients through collectives, tensors in all forms ---


def collectives_together(rank, n):
    sums, parts = [mine(rank), mine(rank)], [torch.empty(3 * n), torch.empty(3 * n)]
    with _coalescing_manager():
        for one in sums:
            dist.all_reduce(one)
    with _coalescing_manager(async_ops=True) as together:
        for part in parts:
            all_gather_single(part, mine(rank))
    together.wait()
    assert parts[0].equal(parts[1])
    assert parts[0][::3].tolist() == [r + 1.0 for r in range(n)]
    return [one.tolist() for one in sums] == [[total(n)] * 3] * 2


def gradients_through_collectives(rank, n):
    weight = mine(rank).requires_grad_()
    world = dist.group.WORLD
    with warnings.catch_warnings():
        # the newest torch has others, which are not compared
        warnings.simplefilter("ignore", FutureWarning)
        part = differentiable.functional.reduce_scatter(torch.empty(3), [weight] * n, group=world)
        total = differentiable.functional.all_reduce(part, group=world).sum()
    total.backward()
    return weight.grad.tolist() == [float(n * n)] * 3


def views_of_one_buffer(rank, n):
    """Rows, columns and parts of one tensor do not overlap."""
    chunks, rows_, columns = (
        torch.empty(3 * n).chunk(n),
        torch.empty(n, 3).unbind(),
        torch.empty(3, n).unbind(1),
    )
    for parts in map(list, (chunks, rows_, columns)):
        dist.all_gather(parts, mine(rank))
        dist.gather(mine(rank), parts if rank == 0 else None)
        dist.all_to_all(parts, [mine(rank)] * n)
        if [part.tolist() for part in parts] != [[r + 1.0] * 3 for r in range(n)]:
            return False
    part = torch.empty(3)
    dist.scatter(part, [torch.ones(3)] * n if rank == 0 else None)
    return part.tolist() == [1.0] * 3


def a_gather_into_its_own_part(rank, n):
    whole = torch.zeros(n, 3)
    whole[rank] = rank + 1
    dist.all_gather(list(whole), whole[rank])
    all_gather_single(whole.view(-1), mine(rank))
    return whole[:, 0].tolist() == [r + 1.0 for r in range(n)]


def tensors_without_elements(rank, n):
    sizes = [0 if r % 2 else 2 for r in range(n)]
    got = torch.empty(sizes[rank] * n)
    dist.all_to_all_single(got, torch.ones(sum(sizes)), [sizes[rank]] * n, sizes)
    nothing = [torch.empty(0)] * n
    dist.all_gather(nothing, torch.empty(0))
    dist.all_reduce(torch.empty(0))
    return got.tolist() == [1.0] * (sizes[rank] * n)


def a_broadcast_into_another_shape(rank, n):
    """It must have as many elements on every rank, says torch, and not the same shape."""
    tensor = torch.arange(6.0) if rank == 0 else torch.zeros(2, 3)
    dist.broadcast(tensor, src=0)
    return tensor.flatten().tolist() == [*range(6)]


# --- messages ---


def messages_in_all_forms(rank, n):
    """Objects, from any rank, both ends at once, and tags in another order."""
    after, before = (rank + 1) % n, (rank - 1) % n
    received = [None]
    if rank == 0:
        dist.send_object_list([{"rank": rank}], dst=after)
    dist.recv_object_list(received, src=before)
    if rank > 0:
        dist.send_object_list([{"rank": rank}], dst=after)
    got = [torch.empty(1) for _ in range(3)]
    recvs = [dist.irecv(got[tag], src=before, tag=tag) for tag in (2, 0, 1)]
    sends = [dist.isend(torch.full((1,), float(tag)), dst=after, tag=tag) for tag in range(3)]
    for work in (*sends, *recvs):
        work.wait()
    return received == [{"rank": before}] and [one.item() for one in got] == [0, 1, 2]


def dropped_isends_whose_recvs_were_there(rank, n):
    """gloo sends such a message at once, so that its Work is not needed."""
    after, before = (rank + 1) % n, (rank - 1) % n
    got = torch.zeros(3)
    for step in range(3):
        awaited = dist.irecv(got[step : step + 1], src=before)
        told = dist.irecv(torch.empty(1), src=after, tag=1)
        dist.send(torch.ones(1), dst=before, tag=1)
        told.wait()
        dist.isend(torch.full((1,), float(step)), dst=after)
        awaited.wait()
    return got.tolist() == [0.0, 1.0, 2.0]


def recvs_from_any_rank_and_then_from_each(rank, n):
    """The first messages may come from anywhere; one more comes from each."""
    for _ in range(5):
        if rank == 0:
            senders = [dist.recv(torch.empty(1), tag=3) for _ in range(n - 1)]
            dist.barrier()
            for sender in senders:
                dist.recv(torch.empty(1), src=sender, tag=3)
            if sorted(senders) != [*range(1, n)]:
                return False
        else:
            dist.send(torch.ones(1), dst=0, tag=3)
            dist.barrier()
            dist.send(torch.ones(1), dst=0, tag=3)
        dist.barrier()
    return True


def objects_of_every_collective(rank, n):
    gathered, at_root, scattered, sent = (
        [None] * n,
        [None] * n,
        [None],
        [{"from": 1} if rank == 1 else None],
    )
    dist.all_gather_object(gathered, "x" * rank)
    dist.gather_object({"rank": rank}, at_root if rank == 0 else None)
    dist.scatter_object_list(scattered, [*range(n)] if rank == 0 else None)
    dist.broadcast_object_list(sent, src=1)
    assert rank != 0 or at_root == [{"rank": r} for r in range(n)]
    return [gathered, scattered, sent] == [["x" * r for r in range(n)], [rank], [{"from": 1}]]


# --- threads, and calls beside ---


def threads_with_a_group_each(rank, n):
    groups, done = [dist.new_group() for _ in range(3)], {}

    def add_up(number):
        for _ in range(10):
            sums = mine(rank)
            dist.all_reduce(sums, group=groups[number])
            done[number] = sums.tolist()

    threads = [threading.Thread(target=add_up, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done == {number: [total(n)] * 3 for number in range(3)}


def works_that_another_thread_awaits(rank, n):
    sums, ended = mine(rank), []
    work = dist.all_reduce(sums, async_op=True)
    thread = threading.Thread(target=lambda: ended.append(work.wait()))
    thread.start()
    thread.join()
    return sums.tolist() == [total(n)] * 3 and ended == [True]


def remote_calls_beside_collectives(rank, n):
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=n)
    sums = mine(rank)
    work = dist.all_reduce(sums, async_op=True)
    future = rpc.rpc_async(f"w{(rank + 1) % n}", dist.get_rank)
    work.wait()
    got = future.wait()
    rpc.shutdown()
    return got == (rank + 1) % n and sums.tolist() == [total(n)] * 3


def collectives_along_both_sides_of_a_mesh(rank, n):
    both = dist.device_mesh.init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("rows", "columns"))
    sums = [mine(rank), mine(rank)]
    works = [
        dist.all_reduce(one, group=both.get_group(side), async_op=True)
        for side, one in enumerate(sums)
    ]
    for work in works:
        work.wait()
    mine_and_mates = [sum(r + 1.0 for r in range(n) if r % (n // 2) == rank % (n // 2))]
    return sums[0].tolist() == mine_and_mates * 3 and mesh(n).size() == n


def a_group_of_a_short_life(rank, n):
    for _ in range(3):
        group = dist.new_group([0, 1], timeout=timedelta(seconds=20))
        if rank < 2:
            work = dist.all_reduce(mine(rank), group=group, async_op=True)
            work.wait()
        dist.barrier()
        if rank < 2:
            dist.destroy_process_group(group)
    return sys.modules["__main__"] is not None
