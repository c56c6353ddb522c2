"""A step of a training on real ranks, by the optimizer's marks."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
MICRO_BATCHES = 2


def accumulates(rank, world_size):
    """Gradients are added up over two micro-batches, and over the ranks after the second."""
    model = DistributedDataParallel(nn.Linear(64, 64, bias=False))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        for micro_batch in range(MICRO_BATCHES):
            model.require_backward_grad_sync = micro_batch == MICRO_BATCHES - 1
            model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_step_has_its_own_micro_batches_and_one_all_reduce(usable):
    with usable.trace() as trace:
        usable.run(accumulates)
    whole = {row[0]: row[3] for row in trace.table().rows}
    assert whole["all_reduce"] == str(usable.n * STEPS)
    for step in (0, 1, -1):
        calls = {row[0]: row[3] for row in trace.table(step=step).rows}
        assert calls["all_reduce"] == str(usable.n)
        assert int(calls["forward"]) >= MICRO_BATCHES * usable.n
    limits = [trace.plot(step=step).axes[0].get_xlim() for step in range(STEPS)]
    assert limits == sorted(limits)
    # an all-reduce waits for all ranks, so when one begins step 2, all have ended step 0
    assert limits[0][1] <= limits[2][0]
    assert "step 2 of 0-2" in trace.table(step=-1).title
