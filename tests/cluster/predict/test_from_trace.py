"""A trace that torch's profiler wrote of two real ranks calibrates a prediction.

Times are only bounded here, as the machine has other work; benchmarks/from_trace.py compares them.
"""

import functools
import time

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile

import distlab

STEPS = 4


def make_step(width):
    """A step of two layers in DDP, in several buckets."""
    model = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
    replica = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(64, width)

    def step():
        replica(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def program(rank, world_size, width, make=make_step):
    step = make(width)
    for _ in range(3):
        step()


def traced(rank, world_size, width, path, make=make_step):
    """Seconds of a step; rank 0 writes a trace of a few."""
    step = make(width)
    for _ in range(3):
        step()
    began = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(STEPS):
            step()
    took = time.perf_counter() - began
    if rank == 0:
        profiler.export_chrome_trace(path)
    return took / STEPS


def test_a_trace_of_two_ranks_says_what_four_take(tmp_path, nothing_left):
    path = str(tmp_path / "trace.json")
    with distlab.Cluster(2, timeout=60) as cluster:
        measured = max(cluster.run(traced, 256, path))
    network = distlab.Network("20 us", "1 GB/s", algorithms={"all_reduce": "ring"})
    predict = functools.partial(distlab.predict, functools.partial(program, width=256))
    step = predict(2, network, distlab.Device("100 TFLOP/s"))
    device = step.calibrated(trace=path)

    assert device.measured.share > 0.9
    names = {kernel.name for kernel in device.measured.kernels}
    assert {"addmm", "mm", "relu", "threshold_backward"} <= names
    assert {call.name for call in device.measured.calls} == {"all_reduce"}
    assert sum(call.count for call in device.measured.calls) % STEPS == 0

    again = predict(2, network, device)
    assert set(again.longer) == {"measured"}
    # an operator is predicted to take its median, and a crowded machine makes the steps longer
    assert 0.0 < again.seconds < measured * 2
    four = predict(4, network, device)
    assert four.seconds > again.seconds


def sharded(width):
    """A step of two layers in FSDP2."""
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(2)])
    for layer in model:
        fully_shard(layer)
    optimizer = torch.optim.SGD(model.parameters())

    def step():
        model(torch.ones(64, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_gathers_and_scattered_sums_of_gloo_are_found(tmp_path, nothing_left):
    """gloo runs an all-reduce where FSDP2 calls reduce_scatter."""
    path = str(tmp_path / "trace.json")
    with distlab.Cluster(2, timeout=60) as cluster:
        cluster.run(traced, 256, path, sharded)
    step = distlab.predict(
        functools.partial(program, width=256, make=sharded),
        2,
        distlab.Network("20 us", "1 GB/s"),
        distlab.Device("100 TFLOP/s"),
    )
    measured = step.calibrated(trace=path).measured
    found = {call.name: call.count for call in measured.calls}
    assert found == {"all_gather": 2 * STEPS, "reduce_scatter": 2 * STEPS}
