"""Layers that are different on a GPU, and programs that are written for one."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

import distlab
from distlab_predict.nodes import Kernel
from tests.cluster.predict.test_predict import FREE, NETWORK, calls, train


class Bottleneck(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (8, 4, 4, 8)
        sizes = (1, 3, 1)
        parts = [
            nn.Sequential(
                nn.Conv2d(before, width, size, padding="same"), nn.BatchNorm2d(width), nn.ReLU()
            )
            for before, width, size in zip(widths, widths[1:], sizes, strict=False)
        ]
        self.inside = nn.Sequential(*parts)

    def forward(self, values):
        return values + self.inside(values)


def convolutions(rank, world_size, synchronous=False):
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 10))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Bottleneck(), head)
    if synchronous:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = torch.compile(nn.parallel.DistributedDataParallel(model))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(torch.randn(4, 3, 16, 16))
            loss = nn.functional.cross_entropy(output, torch.zeros(4, dtype=torch.int64))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def test_convolutions_send_their_gradients_and_the_buffers_of_their_norms():
    """Mean and variance of 16 channels and three counts; all gradients in one bucket."""
    parameters = (3 * 9 + 1) * 8 + (8 * 4 + 4) + (4 * 4 * 9 + 4) + (4 * 8 + 8) + 2 * 16 + 90
    buffers = [("broadcast", 8, 2 * 16 * 4), ("broadcast", 8, 3 * 8)]
    assert calls(distlab.predict(convolutions, 8, NETWORK, FREE)) == [
        *buffers,
        ("all_reduce", 8, parameters * 4),
    ]


def test_a_norm_of_all_ranks_values_gathers_and_adds_up():
    """Forward, mean, deviation and count; backward, two sums, last layer first."""
    made = calls(
        distlab.predict(functools.partial(convolutions, synchronous=True), 8, NETWORK, FREE)
    )
    gathers = [("all_gather", 8, (2 * channels + 1) * 4) for channels in (4, 4, 8)]
    sums = [("all_reduce", 8, 2 * channels * 4) for channels in (8, 4, 4)]
    assert made[2:-1] == gathers + sums


def attention(rank, world_size, mask=False, by_hand=False):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model = nn.Linear(32, 96)
    parts = model(torch.ones(2, 64, 32)).chunk(3, -1)
    query, key, value = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in parts)
    allowed = torch.ones(64, 64, dtype=torch.bool) if mask else None
    kinds = (
        [SDPBackend.MATH]
        if by_hand
        else [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    )
    with sdpa_kernel(kinds):
        output = nn.functional.scaled_dot_product_attention(
            query, key[:, :2], value[:, :2], allowed, dropout_p=0.1, enable_gqa=True
        )
    output.sum().backward()
    torch.optim.SGD(model.parameters()).step()


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({}, "_scaled_dot_product_flash_attention"),
        ({"mask": True}, "_scaled_dot_product_efficient_attention"),
    ],
)
def test_attention_is_one_kernel_as_on_a_gpu(options, kernel):
    """Also with dropout, where a CPU would make the matrix; it counts two products, and five."""
    prediction = distlab.predict(functools.partial(attention, **options), 1, NETWORK, FREE)
    kernels = [
        node
        for node in prediction.recordings[0].nodes
        if isinstance(node, Kernel) and kernel in node.name
    ]
    product = 2 * 2 * 4 * 64 * 64 * 8
    assert [node.flops for node in kernels] == [2 * product, 5 * product]


def test_attention_by_its_formula_makes_the_matrix_of_all_scores():
    prediction = distlab.predict(functools.partial(attention, by_hand=True), 1, NETWORK, FREE)
    assert not any("attention" in node.name for node in prediction.recordings[0].nodes)
    assert prediction.memory["activations"] > 2 * 2 * 4 * 64 * 64 * 4


def begins_itself(rank, world_size):
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(4), group=dist.new_group(range(4), backend="gloo"))
    train(torch.compile(nn.Linear(64, 64), fullgraph=True), 1)
    dist.destroy_process_group()


def test_every_group_is_of_the_predicted_cluster():
    """Whatever backend a script for torchrun names for it."""
    prediction = distlab.predict(begins_itself, 8, NETWORK, FREE)
    sent = [
        (node.name, node.members)
        for node in prediction.recordings[0].nodes
        if not isinstance(node, Kernel)
    ]
    assert sent == [("all_reduce", (0, 1, 2, 3))]
