"""A program that is written for GPUs runs as it is, on the described device."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import distlab
from distlab_predict.nodes import Kernel
from tests.cluster.predict.test_predict import FREE, NETWORK, calls, layers, train

PARAMETERS = 3 * (64 * 64 + 64)


def of_a_tutorial(rank, world_size):
    """With everything that a CPU of its own refuses."""
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() >= 8
    device = int(os.environ.get("LOCAL_RANK", rank))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=torch.device("cuda", device))
    torch.cuda.manual_seed_all(0)
    model = DistributedDataParallel(layers().to(device), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler()
    loader = DataLoader(TensorDataset(torch.ones(32, 64)), batch_size=16, pin_memory=True)
    for (batch,) in loader:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch.pin_memory().to(device, non_blocking=True)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB {loss.item()}")
    dist.destroy_process_group()


def of_any_accelerator(rank, world_size):
    assert torch.accelerator.is_available()
    kind = torch.accelerator.current_accelerator()
    device = torch.device(f"{kind}:{rank % torch.accelerator.device_count()}")
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    train(DistributedDataParallel(layers().to(device)), 2)


def of_modules_made_there(rank, world_size):
    with torch.device("cuda"):
        model = layers()
    train(DistributedDataParallel(model.cuda(), device_ids=[0]), 2)


@pytest.mark.parametrize("program", [of_a_tutorial, of_any_accelerator, of_modules_made_there])
def test_gradients_of_a_program_for_gpus_are_added_up(program):
    assert calls(distlab.predict(program, 8, NETWORK, FREE)) == [("all_reduce", 8, 4 * PARAMETERS)]


def test_what_a_gpu_would_measure_is_printed_as_a_number_without_data(capsys):
    distlab.predict(of_a_tutorial, 8, NETWORK, FREE)
    assert capsys.readouterr().out == "(no data) GiB (no data)\n" * 2


def test_a_program_waits_where_it_synchronizes_and_where_it_reads():
    """In each step for all streams, and then for the loss. A fused optimizer asks for nothing."""
    recording = distlab.predict(of_a_tutorial, 4, NETWORK, FREE).recordings[0]
    everything, loss, *later = recording.waits
    assert len(later) == 2
    assert everything.before == loss.before
    assert set(loss.ends) < set(everything.ends)


def test_autocast_of_a_gpu_computes_with_its_format():
    """A loss in bfloat16 is made of products of bfloat16: they read half of the bytes."""

    def program(rank, world_size, enabled):
        model = nn.Linear(64, 64, bias=False, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled):
            model(torch.ones(16, 64, device="cuda")).sum().backward()

    def products(enabled):
        def of_this(rank, world_size):
            program(rank, world_size, enabled)

        noted = distlab.predict(of_this, 1, NETWORK, FREE).recordings[0].nodes
        return [node.num_bytes for node in noted if isinstance(node, Kernel) and node.flops]

    assert products(True) == [num_bytes // 2 for num_bytes in products(False)]


def steps(model, batch):
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(batch).sum().backward()
        optimizer.step()


def moved_again(rank, world_size):
    steps(layers().cuda(), torch.ones(16, 64, device="cuda").to("cuda:0"))


def never_moved(rank, world_size):
    steps(layers(), torch.ones(16, 64))


def test_a_move_to_the_gpu_on_which_a_tensor_is_costs_nothing():
    moved, not_moved = (
        distlab.predict(program, 1, NETWORK, FREE) for program in (moved_again, never_moved)
    )
    names = [[node.name for node in found.recordings[0].nodes] for found in (moved, not_moved)]
    assert names[0] == names[1]
    assert moved.memory["parameters"] == 4 * PARAMETERS


def test_shards_of_gpus_are_those_of_the_described_devices():
    def program(rank, world_size):
        mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("data", "tensor"))
        styles = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        model = parallelize_module(layers(), mesh["tensor"], styles)
        fully_shard(model, mesh=mesh["data"])
        train(model, 2)

    made = calls(distlab.predict(program, 8, NETWORK, FREE))
    assert {(name, size) for name, size, _ in made} >= {("all_gather", 4), ("reduce_scatter", 4)}


def overlapped(rank, world_size):
    """A copy of gradients on a stream of its own, which the optimizer waits for."""
    model = layers().cuda()
    optimizer = torch.optim.SGD(model.parameters())
    side = torch.cuda.Stream()
    for _ in range(2):
        model(torch.ones(16, 64)).sum().backward()
        side.wait_stream(torch.cuda.current_stream())
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(side):
            begin.record()
            copies = [parameter.grad.clone() for parameter in model.parameters()]
            end.record()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        print(f"{begin.elapsed_time(end):.1f} ms for {len(copies)}")


def test_streams_of_a_gpu_are_those_of_the_described_device(capsys):
    assert distlab.predict(overlapped, 1, NETWORK, FREE).seconds >= 0.0
    assert capsys.readouterr().out == "(no data) ms for 6\n" * 2
